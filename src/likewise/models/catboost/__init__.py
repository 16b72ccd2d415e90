"""catboost"""
