"""Train several models, keep the best one with its decision threshold: `python -m src.train`."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import sklearn
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, precision_recall_curve
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from src.data import ROOT, config, load


def candidates(seed: int) -> dict[str, Pipeline]:
    """The models that compete: a linear one, a small network, boosted trees."""
    linear = LogisticRegression(C=0.05, solver="newton-cholesky")
    network = MLPClassifier(
        (16,), alpha=1.0, learning_rate_init=0.003, batch_size=512, early_stopping=True, n_iter_no_change=3
    )
    trees = HistGradientBoostingClassifier(max_iter=60, min_samples_leaf=60, early_stopping=False)
    return {
        "logistic": make_pipeline(columns(scaled=True), linear),
        "network": make_pipeline(columns(scaled=True), network.set_params(random_state=seed)),
        "trees": make_pipeline(columns(scaled=False), trees.set_params(random_state=seed)),
    }


def columns(*, scaled: bool) -> Any:
    """Numbers filled and scaled, or left as they are; categories one-hot, with room for those never seen."""
    numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler()) if scaled else "passthrough"
    categories = make_pipeline(
        SimpleImputer(strategy="constant", fill_value="unknown"),
        OneHotEncoder(handle_unknown="ignore", sparse_output=False),
    )
    return make_column_transformer(
        (numbers, make_column_selector(dtype_include="number")),
        (categories, make_column_selector(dtype_exclude="number")),
    )


def best_threshold(target: pd.Series, probability: np.ndarray) -> float:
    """Where late flights are called late with the best F1 score."""
    precision, recall, thresholds = precision_recall_curve(target, probability)
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    return float(thresholds[np.argmax(f1[:-1])])


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main() -> None:
    settings = config()
    features, target, day = load("train")
    # Flights of one day share its weather and its jams: a day that is in two folds gives the answers away.
    folds = GroupKFold(settings["folds"])
    models = {name: model for name, model in candidates(settings["seed"]).items() if name in settings["models"]}
    held_out = {
        name: cross_val_predict(model, features, target, groups=day, cv=folds, method="predict_proba")[:, 1]
        for name, model in models.items()
    }
    scores = {name: average_precision_score(target, probability) for name, probability in held_out.items()}
    chosen = max(scores, key=lambda name: scores[name])
    model = models[chosen].fit(features, target)
    threshold = best_threshold(target, held_out[chosen])
    test_features, test_target, _ = load("test")
    tested = average_precision_score(test_target, model.predict_proba(test_features)[:, 1])

    artifacts = settings["artifacts"]
    artifacts["model"].parent.mkdir(parents=True, exist_ok=True)
    joblib.dump(model, artifacts["model"])
    artifacts["threshold"].write_text(f"{threshold:.6f}\n")
    lineage = {
        "model": chosen,
        "model_sha256": sha256(artifacts["model"]),
        "data_sha256": sha256(settings["data"]),
        "config_sha256": sha256(ROOT / "config.yaml"),
        "train_rows": len(features),
        "test_rows": len(test_features),
        "average_precision": {**{name: round(score, 4) for name, score in scores.items()}, "test": round(tested, 4)},
        "threshold": threshold,
        "sklearn": sklearn.__version__,
    }
    artifacts["lineage"].write_text(json.dumps(lineage, indent=2) + "\n")
    print(json.dumps(lineage, indent=2))


if __name__ == "__main__":
    main()
