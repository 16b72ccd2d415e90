"""Will this flight arrive late?"""
