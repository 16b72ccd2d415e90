"""The configuration, the flights, and which of them are for training and which for the test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import yaml

ROOT = Path(__file__).resolve().parent.parent


def config() -> dict[str, Any]:
    """What `config.yaml` says, with full paths."""
    found = yaml.safe_load((ROOT / "config.yaml").read_text())
    found["data"] = ROOT / found["data"]
    found["artifacts"] = {name: ROOT / path for name, path in found["artifacts"].items()}
    return found


def load(split: str) -> tuple[pd.DataFrame, pd.Series, pd.Series]:
    """Features, target and day of the `train` or the `test` flights, in the order they were scheduled."""
    settings = config()
    table = pd.read_parquet(settings["data"])
    later = table[settings["split"]["column"]] >= settings["split"]["test_from"]
    table = table[later if split == "test" else ~later].reset_index(drop=True)
    target, day = table.pop(settings["target"]), table.pop(settings["split"]["column"])
    return table, target, day
