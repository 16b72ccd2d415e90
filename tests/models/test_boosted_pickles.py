"""Pickled boosters are read, and what stands beside them in their packages is not: some of it frees any address."""

from __future__ import annotations

import io
import pickle

import joblib
import numpy as np
import pytest
import xgboost
from boosted import TWO, X
from catboost import CatBoostClassifier
from lightgbm import LGBMClassifier
from xgboost import XGBClassifier

from likewise.errors import UntrustedModelError
from likewise.models.pickles import load

MODELS = {
    "xgboost": lambda: XGBClassifier(
        n_estimators=3,
        n_jobs=1,
        random_state=np.random.RandomState(0),
        callbacks=[xgboost.callback.EarlyStopping(rounds=2)],
    ).fit(X, TWO, eval_set=[(X, TWO)], verbose=0),
    "lightgbm": lambda: LGBMClassifier(n_estimators=3, n_jobs=1, verbose=-1).fit(X, np.array(["no", "yes"])[TWO]),
    "catboost": lambda: CatBoostClassifier(iterations=3, verbose=0, allow_writing_files=False).fit(
        X, TWO, eval_set=(X, TWO)
    ),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("how", ["joblib", "compressed joblib", 0, 2, 4, 5])
def test_wrappers_are_read_and_answer_alike(name, how, tmp_path):
    model = MODELS[name]()
    path = tmp_path / "model.pkl"
    if isinstance(how, int):
        path.write_bytes(pickle.dumps(model, protocol=how))
    else:
        joblib.dump(model, path, compress=3 if "compressed" in how else 0)
    assert np.array_equal(load(path).predict_proba(X), model.predict_proba(X))


def making(module, name, state):
    """A pickle that makes an object without its constructor and fills it."""
    made = io.BytesIO()
    made.write(b"\x80\x02" + f"c{module}\n{name}\n".encode() + b")\x81")
    made.write(pickle.dumps(state, protocol=2)[2:-1] + b"b.")
    return made.getvalue()


@pytest.mark.parametrize(
    ("module", "name", "state"),
    [
        ("lightgbm.basic", "Dataset", {"_handle": b"A" * 64, "_predictor": None, "_need_slice": False}),
        ("lightgbm.basic", "_InnerPredictor", {"_handle": b"A" * 64, "_InnerPredictor__is_manage_handle": True}),
        ("xgboost.core", "DMatrix", {"handle": b"A" * 64}),
        ("xgboost.core", "QuantileDMatrix", {"handle": b"A" * 64}),
        ("xgboost", "DMatrix", {"handle": b"A" * 64}),
        ("catboost.core", "Pool", {}),
        ("catboost.core", "_CatBoostBase", {}),
    ],
)
def test_holders_of_addresses_are_refused(module, name, state, tmp_path):
    path = tmp_path / "evil.pkl"
    path.write_bytes(making(module, name, state))
    with pytest.raises(UntrustedModelError, match=name):
        load(path)


@pytest.mark.parametrize(("module", "argument"), [("xgboost.core", "Booster"), ("lightgbm.basic", "Booster")])
def test_a_constructor_that_reads_files_is_not_called(module, argument, tmp_path):
    path = tmp_path / "evil.pkl"
    call = pickle.dumps((None, None, "/etc/hostname"), protocol=2)[2:-1]
    path.write_bytes(b"\x80\x02" + f"c{module}\n{argument}\n".encode() + call + b"R.")
    with pytest.raises(UntrustedModelError, match="calling"):
        load(path)
