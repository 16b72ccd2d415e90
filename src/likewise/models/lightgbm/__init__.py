"""lightgbm"""
