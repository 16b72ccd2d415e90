"""variations"""
