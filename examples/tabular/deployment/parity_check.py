"""Does the ONNX model give the same probability of a late arrival as the scikit-learn model?

Exit code 0: both differences are within tolerance. 1: they are not. 3: it could not be compared.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from src.data import ROOT, config, load

import likewise

ADVICE = """\
when to tighten: high stakes, ranking or calibrated probabilities: --abs-tol 0.01 to 0.02, and
  --mean-tol 0.005 to catch a systematic bias that stays small on every single row
when to widen: after quantisation: --abs-tol 0.06 to 0.10; --mean-tol 0.02 if a few outliers are acceptable
how many samples: 256 to 512 during development, 1000 or more in CI
"""
EXIT = {"PASS": 0, "FAIL": 1, "INCONCLUSIVE": 3}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=ADVICE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--abs-tol", type=float, default=0.04, help="largest difference of any row (default 0.04)")
    parser.add_argument("--mean-tol", type=float, default=0.01, help="largest mean difference (default 0.01)")
    parser.add_argument("--batch-size", type=int, default=256, help="how many of the test samples (default 256)")
    parser.add_argument("--model", type=Path, help="the ONNX model (default artifacts/model.onnx)")
    chosen = parser.parse_args()
    artifacts = config()["artifacts"]
    try:
        features, _, _ = load("test")
    except OSError as error:
        print(f"The test samples cannot be read: {error}", file=sys.stderr)
        return EXIT["INCONCLUSIVE"]
    try:
        # Of two classes the probabilities differ by the same amount, so this is the positive class's difference.
        report = likewise.check(
            artifacts["model"],
            ROOT / chosen.model if chosen.model else artifacts["onnx"],
            features,
            preset="standard",
            abs_tol=chosen.abs_tol,
            mean_tol=chosen.mean_tol,
            samples=chosen.batch_size,
            batch_sizes=(),
            report=artifacts["report"],
        )
    except likewise.LikewiseError as error:
        parser.error(str(error))
    written = json.loads(artifacts["report"].read_text())
    names = ("samples", "max_abs_diff", "mean_abs_diff", "abs_tol", "mean_tol", "passed", "outcome", "headline")
    print(json.dumps({name: written[name] for name in names}, indent=2))
    return EXIT[report.outcome]


if __name__ == "__main__":
    sys.exit(main())
