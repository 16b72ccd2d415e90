"""Write the trained model as ONNX, with what to feed it and where it came from beside it."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from src.data import config, load

import likewise


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--zipmap", action="store_true", help="probabilities as one dictionary a row")
    chosen = parser.parse_args()
    artifacts = config()["artifacts"]
    features, _, _ = load("train")
    # Whether the file answers like the model is the question of parity_check.py.
    exported = likewise.export(artifacts["model"], features, artifacts["onnx"], zipmap=chosen.zipmap, check=False)
    artifacts["onnx"].with_suffix(".features.json").replace(artifacts["features"])
    metadata = artifacts["onnx"].with_suffix(".metadata.json")
    about = {**json.loads(metadata.read_text()), "threshold": float(artifacts["threshold"].read_text())}
    artifacts["metadata"].write_text(json.dumps(about, indent=2) + "\n")
    metadata.unlink()
    print(f"{artifacts['onnx'].name}: {exported.bytes:,} bytes, {len(exported.features)} inputs")


if __name__ == "__main__":
    main()
