"""The same model file in two versions of its framework: `make versions`.

A model is trained in the older environment and saved. A plain script in each environment says what it answers, which is
the truth: alike, different, or one of them cannot open it. Then `likewise.check` is asked about the same two
environments, and once more about a copy of the model that was changed on purpose, which has to fail. Environments are
made by uv or pip, and kept (`LIKEWISE_CACHE`). `--python` names another interpreter for them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

import likewise
from likewise.errors import LikewiseError
from likewise.models.environments import make

TRAIN = """
import sys, joblib, numpy as np, pandas as pd
kind, rows, folder = sys.argv[1:]
X = pd.read_csv(rows); y = (X["a"] + X["b"] * X["c"] > 0).astype(int)
for name, shift in (("model", 0.0), ("changed", 0.05)):
    if kind == "linear":
        from sklearn.linear_model import LogisticRegression
        model = LogisticRegression().fit(X, y); model.intercept_ += shift
    elif kind == "forest":
        from sklearn.ensemble import RandomForestClassifier
        model = RandomForestClassifier(10 + int(20 * shift), random_state=0).fit(X, y)
    elif kind == "xgboost":
        import xgboost
        model = xgboost.train({"objective": "binary:logistic"}, xgboost.DMatrix(X, y), 10 + int(20 * shift))
        model.save_model(f"{folder}/{name}.json"); continue
    else:
        import lightgbm
        model = lightgbm.train({"objective": "binary", "verbose": -1}, lightgbm.Dataset(X, y), 10 + int(20 * shift))
        model.save_model(f"{folder}/{name}.txt"); continue
    joblib.dump(model, f"{folder}/{name}.joblib")
"""
ANSWER = """
import sys, json, joblib, pandas as pd
path, rows = sys.argv[1:]
X = pd.read_csv(rows)
if path.endswith(".joblib"):
    found = joblib.load(path).predict_proba(X)[:, 1]
elif path.endswith(".json"):
    import xgboost
    found = xgboost.Booster(model_file=path).predict(xgboost.DMatrix(X))
else:
    import lightgbm
    found = lightgbm.Booster(model_file=path).predict(X)
print(json.dumps([float(value) for value in found]))
"""
SUFFIX = {"linear": ".joblib", "forest": ".joblib", "xgboost": ".json", "lightgbm": ".txt"}
SKLEARN = ("1.2.2", "1.3.2", "1.5.2", "1.7.2")
PAIRS = [
    *((kind, f"scikit-learn=={old}", f"scikit-learn=={new}") for kind in ("linear", "forest")
      for place, old in enumerate(SKLEARN) for new in SKLEARN[place + 1 :]),
    *(("xgboost", f"xgboost=={old}", f"xgboost=={new}") for old, new in (("1.7.6", "2.1.4"), ("2.1.4", "3.0.5"))),
    *(("lightgbm", f"lightgbm=={old}", f"lightgbm=={new}") for old, new in (("3.3.5", "4.5.0"), ("4.5.0", "4.6.0"))),
]  # fmt: skip
"""Kinds of models, and the versions that they are trained and asked in."""

QUICK = {"batch_sizes": (), "edge": "off", "explain": False, "trusted": ["*"]}


def packages(framework: str) -> list[str]:
    return [framework, "numpy<2", "pandas<2.3", *([] if "scikit" in framework else ["scikit-learn<1.6"])]


def truth(path: Path, rows: Path, pythons: tuple[str, str]) -> str:
    """What a plain script says in both environments."""
    answers = []
    for python in pythons:
        done = subprocess.run([python, "-c", ANSWER, path, rows], capture_output=True, text=True, check=False)
        if done.returncode:
            return "INCONCLUSIVE"
        answers.append(np.array(json.loads(done.stdout)))
    return "PASS" if np.allclose(answers[1], answers[0], rtol=1e-3, atol=1e-4) else "FAIL"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="pairs whose words contain this")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that environments are made for")
    chosen = parser.parse_args()
    wrong = count = 0
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.csv"
        table = pd.DataFrame(np.random.default_rng(0).normal(size=(300, 3)), columns=list("abc"))
        table.to_csv(rows, index=False)
        for kind, old, new in PAIRS:
            if chosen.only not in f"{kind} {old} {new}":
                continue
            try:
                pythons = tuple(make.python_with(packages(name), chosen.python, tell=print) for name in (old, new))
                subprocess.run([pythons[0], "-W", "ignore", "-c", TRAIN, kind, rows, folder], check=True)
            except (LikewiseError, subprocess.CalledProcessError) as error:
                print(f"skipped  {kind}: {old} → {new}: {error}")
                continue
            model, changed = (Path(folder) / f"{name}{SUFFIX[kind]}" for name in ("model", "changed"))
            expected = truth(model, rows, pythons)
            before, after = (likewise.elsewhere(model, python=python) for python in pythons)
            found = likewise.check(before, after, rows, **QUICK)
            planted = likewise.check(before, likewise.elsewhere(changed, python=pythons[0]), rows, **QUICK)
            right = found.outcome == expected and planted.outcome == "FAIL"
            count, wrong = count + 2, wrong + (found.outcome != expected) + (planted.outcome != "FAIL")
            print(
                f"{'right' if right else 'WRONG'}  {kind}: {old} → {new}: {found.outcome} ({found.headline})",
                flush=True,
            )
    print(f"{count - wrong} of {count} verdicts are right")
    return 1 if wrong or not count else 0


if __name__ == "__main__":
    sys.exit(main())
