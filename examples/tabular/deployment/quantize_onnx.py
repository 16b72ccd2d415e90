"""Write a copy of the ONNX model that computes with eight-bit integers where that is possible."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from src.data import config

import likewise


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    artifacts = config()["artifacts"]
    quantized = likewise.quantize(artifacts["onnx"], artifacts["int8"], allow_noop=True).quantized
    if not quantized.changed:
        print("Nothing to quantise: no operator of the model that won has an eight-bit form; the copy is the same.")
    sizes = f"{quantized.bytes_before:,} → {quantized.bytes_after:,} bytes"
    print(f"{artifacts['int8'].name}: {sizes}, {quantized.changed} nodes changed")


if __name__ == "__main__":
    main()
