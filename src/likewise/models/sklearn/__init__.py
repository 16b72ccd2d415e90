"""scikit-learn estimators and pipelines. Nothing here imports scikit-learn before it is used."""
