"""xgboost"""
