"""What XGBoost, LightGBM and CatBoost have in common, and what a trained model of each says about itself.

`running` answers batches, `tables` turns a batch into what a booster takes, `files` recognises model files by
their first bytes. `xgb`, `lgb` and `cat` read the facts that adapters and exporters both need out of an open
model. Nothing here imports a framework before it is used.
"""
