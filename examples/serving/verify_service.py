"""Start a service on the loopback interface and verify that it answers like the model it serves.

python verify_service.py                    # ✓, exit 0
python verify_service.py --fault columns    # what a failure looks like: ✗, exit 1
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
from serve import FAULTS, Service, server_of
from sklearn.ensemble import HistGradientBoostingClassifier

import likewise


def trained() -> tuple[HistGradientBoostingClassifier, pd.DataFrame]:
    """A model of three columns with gaps, and rows that it has not seen."""
    draw = np.random.default_rng(0)
    rows = pd.DataFrame(draw.normal(size=(600, 3)), columns=["tenure", "age", "balance"])
    stays = rows["tenure"] + rows["age"] * rows["balance"] > 0
    rows = rows.mask(draw.random(rows.shape) < 0.1)
    model = HistGradientBoostingClassifier(max_iter=20, random_state=0).fit(rows[:400], stays[:400].astype(int))
    return model, rows[400:].reset_index(drop=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fault", choices=FAULTS, default="none")
    fault = parser.parse_args().fault
    model, rows = trained()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.joblib"
        joblib.dump(model, path)
        with server_of(Service(str(path), fault), 0) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            url = f"http://127.0.0.1:{server.server_port}/v2/models/churn"
            options = {"rows": 64, "concurrency": 2}
            report = likewise.check(model, url, rows, candidate_options=options, edge="off", explain=False)
            server.shutdown()
    print("✓" if report else "✗", report.headline)
    for warning in report.comparison.warnings:
        print("·", warning)
    return 0 if report else 1


if __name__ == "__main__":
    sys.exit(main())
