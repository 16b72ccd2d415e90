"""The same model file in two versions of its framework, of numpy or of Python: `make versions`.

A model is made in the older environment and saved. A plain script in each environment says what it answers, which is
the truth: alike, different, or one of them cannot open it. Then `likewise.check` is asked about the same two
environments, and once more about a copy of the model that was changed on purpose, which has to fail. Where the packages
of one Python make the difference, `likewise.bisect` has to name the one. Environments are made by uv or pip, and kept
(`LIKEWISE_CACHE`); Pythons are looked for on the path and among those of pyenv.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

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
    elif kind == "onnx":
        from skl2onnx import to_onnx
        from sklearn.ensemble import GradientBoostingClassifier
        model = GradientBoostingClassifier(n_estimators=10 + int(20 * shift), random_state=0).fit(X.to_numpy(), y)
        graph = to_onnx(model, X.to_numpy(np.float32)[:1], target_opset=17, options={"zipmap": False})
        open(f"{folder}/{name}.onnx", "wb").write(graph.SerializeToString()); continue
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
FUNCTIONS = {
    # Numbers beside arrays keep their own type since numpy 2: a small type no longer runs over, or not as it did.
    "promotion": "np.asarray(np.abs(rows['a']) * 50).astype(np.uint8) * np.int64(3) + {shift}",
    # `sum` of floats keeps what is lost on the way since Python 3.12.
    "sums": "np.array([sum([a * 1e16, b, -a * 1e16]) for a, b in zip(rows['a'], rows['b'])]) + {shift}",
    # Dummies are true or false since pandas 2: two of them together are no longer two.
    "dummies": "(lambda held: (held + held).astype(float))(pd.get_dummies(rows['a'] > 0).to_numpy()[:, 0]) + {shift}",
    # KMeans begins once since scikit-learn 1.4, where it had begun ten times and kept the best.
    "clusters": "KMeans(12, random_state=0).fit(NOISE).transform(np.asarray(rows)).min(axis=1) + {shift}",
    "plain": "np.asarray(rows['a'] + 2 * rows['b']) + {shift}",
}
ANSWER = """
import sys, json, pandas as pd, numpy as np
path, rows = sys.argv[1:]
X = pd.read_csv(rows)
if path.endswith(".joblib"):
    import joblib
    found = joblib.load(path).predict_proba(X)[:, 1]
elif path.endswith(".json"):
    import xgboost
    found = xgboost.Booster(model_file=path).predict(xgboost.DMatrix(X))
elif path.endswith(".onnx"):
    import onnxruntime
    found = onnxruntime.InferenceSession(path).run(None, {"X": X.to_numpy(np.float32)})[1][:, 1]
elif path.endswith(".py"):
    made = {}; exec(open(path).read(), made); found = made["model"](X)
else:
    import lightgbm
    found = lightgbm.Booster(model_file=path).predict(X)
print(json.dumps([float(value) for value in found]))
"""
SUFFIX = {"linear": ".joblib", "forest": ".joblib", "xgboost": ".json", "lightgbm": ".txt", "onnx": ".onnx"}
QUICK = {"batch_sizes": (), "edge": "off", "explain": False, "trusted": ["*"]}
TOGETHER = ("numpy<2", "pandas<2.3")
"""What the older versions go with."""


class Pair(NamedTuple):
    """A kind of model, and the packages of before and of after; `pythons` other than the one that runs this."""

    kind: str
    old: tuple[str, ...]
    new: tuple[str, ...]
    pythons: tuple[str, str] | None = None
    culprit: str | None = None

    def __str__(self) -> str:
        places = [" ".join(part) for part in (self.old, self.new)]
        names = [f"{place} (Python {version})" for place, version in zip(places, self.pythons or ("", ""), strict=True)]
        return f"{self.kind}: {' → '.join(names if self.pythons else places)}"


def _framework(name: str, old: str, new: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    beside = TOGETHER if name in ("scikit-learn", "onnxruntime") else (*TOGETHER, "scikit-learn<1.6")
    before, after = ((f"{name}=={version}", *beside) for version in (old, new))
    return before, after


SKLEARN = ("1.2.2", "1.3.2", "1.5.2", "1.7.2")
RUNTIMES = ("1.16.3", "1.17.3", "1.18.1", "1.20.1", "1.22.1")
NUMPY_1 = ("scikit-learn==1.5.2", "numpy==1.26.4", "pandas==2.2.2")
NUMPY_2 = ("scikit-learn==1.5.2", "numpy==2.0.2", "pandas==2.2.3")
SMALL = ("numpy", "pandas")
PAIRS = [
    *(Pair(kind, *_framework("scikit-learn", old, new)) for kind in ("linear", "forest")
      for place, old in enumerate(SKLEARN) for new in SKLEARN[place + 1 :]),
    *(Pair("xgboost", *_framework("xgboost", *found)) for found in (("1.7.6", "2.1.4"), ("2.1.4", "3.0.5"))),
    *(Pair("lightgbm", *_framework("lightgbm", *found)) for found in (("3.3.5", "4.5.0"), ("4.5.0", "4.6.0"))),
    *(Pair("onnx", *_framework("onnxruntime", *found)) for found in itertools.pairwise(RUNTIMES)),
    Pair("onnx", *_framework("onnxruntime", RUNTIMES[0], RUNTIMES[-1])),
    *(Pair(kind, NUMPY_1, NUMPY_2) for kind in ("linear", "forest", "plain")),
    Pair("promotion", NUMPY_1, NUMPY_2, culprit="numpy"),
    Pair("dummies", ("numpy==1.24.4", "pandas==1.5.3"), ("numpy==1.26.4", "pandas==2.1.4"), culprit="pandas"),
    Pair(
        "clusters",
        ("scikit-learn==1.3.2", "numpy==1.24.4", "pandas==2.1.4"),
        ("scikit-learn==1.5.2", "numpy==1.26.4", "pandas==2.2.2"),
        culprit="scikit-learn",
    ),
    *(Pair(kind, SMALL, SMALL, pythons) for kind in ("sums", "plain")
      for pythons in (("3.8", "3.11"), ("3.11", "3.12"), ("3.9", "3.13"))),
    Pair("linear", ("scikit-learn==1.3.2", *TOGETHER), ("scikit-learn==1.3.2", *TOGETHER), ("3.8", "3.12")),
    Pair("xgboost", ("xgboost==2.1.4", "scikit-learn"), ("xgboost==2.1.4", "scikit-learn"), ("3.8", "3.13")),
    Pair("lightgbm", ("lightgbm==4.5.0", "scikit-learn"), ("lightgbm==4.6.0", "scikit-learn"), ("3.9", "3.12")),
]  # fmt: skip


def python(version: str) -> str:
    """An interpreter of that version, on the path or among those of pyenv."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    kept = sorted(root.glob(f"{version}.*/bin/python"))
    found = str(kept[-1]) if kept else shutil.which(f"python{version}")
    if found is None:
        raise FileNotFoundError(f"there is no Python {version}")
    return found


def prepare(pair: Pair, maker: str, rows: Path, folder: Path) -> tuple[str, str]:
    """Save a model and a changed copy; their suffix, and what stands behind it to open one."""
    if pair.kind in FUNCTIONS:
        for name, shift in (("model", 0.0), ("changed", 0.5)):
            body = FUNCTIONS[pair.kind].format(shift=shift)
            imports = "import numpy as np\nimport pandas as pd\n"
            imports += "NOISE = np.random.RandomState(0).normal(size=(300, 3))\n"
            imports += "from sklearn.cluster import KMeans\n" if "KMeans" in body else ""
            (folder / f"{name}.py").write_text(f"{imports}\ndef model(rows):\n    return {body}\n")
        return ".py", ":model"
    subprocess.run([maker, "-W", "ignore", "-c", TRAIN, pair.kind, rows, folder], check=True)
    return SUFFIX[pair.kind], ""


def truth(path: Path, rows: Path, pythons: tuple[str, str]) -> str:
    """What a plain script says in both environments."""
    answers = []
    for interpreter in pythons:
        done = subprocess.run([interpreter, "-c", ANSWER, path, rows], capture_output=True, text=True, check=False)
        if done.returncode:
            return "INCONCLUSIVE"
        answers.append(np.array(json.loads(done.stdout)))
    return "PASS" if np.allclose(answers[1], answers[0], rtol=1e-3, atol=1e-4) else "FAIL"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="pairs whose words contain this")
    chosen = parser.parse_args()
    verdicts: list[bool] = []
    named: list[bool] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        rows = folder / "rows.csv"
        table = pd.DataFrame(np.random.default_rng(0).normal(size=(300, 3)), columns=list("abc"))
        table.to_csv(rows, index=False)
        for pair in PAIRS:
            if chosen.only not in str(pair):
                continue
            try:
                homes = [sys.executable] * 2 if pair.pythons is None else [python(version) for version in pair.pythons]
                pythons = (
                    make.python_with(pair.old, homes[0], tell=print),
                    make.python_with(pair.new, homes[1], tell=print),
                )
                maker = sys.executable if pair.kind == "onnx" else pythons[0]
                suffix, behind = prepare(pair, maker, rows, folder)
            except (LikewiseError, FileNotFoundError, subprocess.CalledProcessError) as error:
                print(f"skipped  {pair}: {error}", flush=True)
                continue
            path, changed = folder / f"model{suffix}", folder / f"changed{suffix}"
            expected = truth(path, rows, pythons)
            before, after = (likewise.elsewhere(f"{path}{behind}", python=home) for home in pythons)
            found = likewise.check(before, after, rows, **QUICK)
            planted = likewise.check(before, likewise.elsewhere(f"{changed}{behind}", python=pythons[0]), rows, **QUICK)
            right = [found.outcome == expected, planted.outcome == "FAIL"]
            verdicts += right
            told = f"{found.outcome} ({found.headline}); changed copy: {planted.outcome}"
            if pair.culprit:
                result = likewise.bisect(f"{path}{behind}", rows, *pythons, trusted=["*"])
                names = [upgrade.name for upgrade in result.culprits]
                named.append(names == [pair.culprit])
                right.append(named[-1])
                told += f"; bisect: {', '.join(names)}"
            print(f"{'right' if all(right) else 'WRONG'}  {pair}: {told}", flush=True)
    print(f"{sum(verdicts)} of {len(verdicts)} verdicts are right, bisect named {sum(named)} of {len(named)} packages")
    return 0 if verdicts and all(verdicts) and all(named) else 1


if __name__ == "__main__":
    sys.exit(main())
