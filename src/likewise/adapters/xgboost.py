"""XGBoost models: live boosters and scikit-learn wrappers, .json, .ubj and other files of save_model."""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from likewise.boosters import files, tables, xgb
from likewise.boosters import xgb_views as views
from likewise.boosters.running import BoosterRunner, derives_from
from likewise.contracts.data import Batch
from likewise.contracts.models import Model, Runner, Signature
from likewise.errors import ModelError, UsageError, extra
from likewise.model_options import require_known

JSON = re.compile(rb'\s*\{\s*("version"\s*:\s*\[[\d,\s]*\]\s*,\s*)?"learner"\s*:')
BINARY_JSON = re.compile(rb"\{L.{8}(learner|version)", re.S)
OPTIONS = ("best_iteration", "missing", "threads")


class XgboostAdapter:
    """All knowledge of XGBoost. Options: `threads`; `best_iteration` and `missing`, for boosters that do not say."""

    framework = "xgboost"
    modules = ("xgboost",)

    def claims(self, target: object) -> bool:
        return (
            files.named(target, (".ubj", ".xgb"))
            or files.begins(target, (".json",), JSON)
            or (files.begins(target, (".model", ".bin"), BINARY_JSON) and os.path.exists(str(target)))
            or derives_from(target, "xgboost", (*xgb.WRAPPERS, *xgb.BOOSTERS))
        )

    @contextmanager
    def open(self, model: Model) -> Iterator[Runner]:
        require_known(model, OPTIONS)
        target = model.target
        if isinstance(target, str | os.PathLike):
            target = _load(target)
        if derives_from(target, "xgboost", xgb.WRAPPERS):
            yield _open_wrapper(target, model)
        else:
            yield _open_booster(target, model)


def _load(path: str | os.PathLike[str]) -> Any:
    """The booster in a file, inside the wrapper that saved it if one did."""
    content = files.content(path)
    with extra("boost", needed_for=f"reading {os.fspath(path)}"):
        import xgboost
    if not (JSON.match(content) or BINARY_JSON.match(content)):
        raise files.unreadable(path, "XGBoost", "it does not begin like one, as JSON or UBJSON")
    # A file of half its length makes XGBoost ask for memory that nobody has.
    if content.rstrip()[-1:] != b"}":
        raise files.unreadable(path, "XGBoost", "it ends early")
    try:
        booster = xgboost.Booster(model_file=bytearray(content))
        saved_by = json.loads(booster.attr("scikit_learn") or "{}").get("_estimator_type")
        wrappers = {"classifier": "XGBClassifier", "regressor": "XGBRegressor", "ranker": "XGBRanker"}
        if saved_by not in wrappers:
            return booster
        with extra("sklearn", needed_for=f"{os.fspath(path)}, saved by {wrappers[saved_by]},"):
            import sklearn  # noqa: F401
        wrapper = getattr(xgboost, wrappers[saved_by])(enable_categorical=True)
        wrapper.load_model(bytearray(content))
        return wrapper
    except ModelError:
        raise
    except Exception as error:
        raise files.unreadable(path, "XGBoost", xgb.reason(error)) from error


def _open_wrapper(model: Any, described: Model) -> Runner:
    from sklearn.exceptions import NotFittedError

    try:
        booster = model.get_booster()
    except NotFittedError as error:
        raise ModelError(f"{described.name} is not fitted", remedy="Call fit, then save the model again") from error
    if (threads := _threads(described)) is not None:
        model = copy.deepcopy(model)
        model.n_jobs, booster = threads, model.get_booster()
        booster.set_param({"nthread": threads})
    facts = xgb.facts_of(booster)
    if "missing" in described.options:
        model = copy.copy(model)
        model.missing = _missing(described)
    inputs, table = tables.inputs_of(facts.names, facts.features)
    signature = Signature(inputs, views.outputs_of_wrapper(model, facts), table=table)
    ask = _categorical(booster, facts, signature)
    return BoosterRunner(
        model,
        signature,
        _details(booster, facts, model, used=facts.rounds if facts.best_round is None else facts.best_round + 1),
        name=described.name,
        ask=lambda batch: views.OfWrapper(model, ask(batch), facts),
        reason=xgb.reason,
    )


def _open_booster(booster: Any, described: Model) -> Runner:
    import xgboost

    if str(described.options.get("best_iteration", "")).lower() in ("1", "true", "yes"):
        best = xgb.facts_of(booster).best_round
        if best is None:
            raise ModelError(f"{described.name} has no best iteration: its training did not stop early")
        booster = booster[: best + 1]
    if (threads := _threads(described)) is not None:
        booster = copy.deepcopy(booster)
        booster.set_param({"nthread": threads})
    facts = xgb.facts_of(booster)
    inputs, table = tables.inputs_of(facts.names, facts.features)
    signature = Signature(inputs, views.outputs_of_booster(facts), table=table)
    data = _categorical(booster, facts, signature)
    types = None if xgb.categories_of(booster) else booster.feature_types

    def ask(batch: Batch) -> Any:
        matrix = xgboost.DMatrix(
            data(batch),
            missing=_missing(described),
            feature_types=types,
            enable_categorical=bool(facts.categorical),
            nthread=threads,
        )
        return views.OfBooster(booster, matrix, facts)

    return BoosterRunner(
        booster,
        signature,
        _details(booster, facts, None, used=facts.rounds),
        name=described.name,
        ask=ask,
        reason=xgb.reason,
    )


def _categorical(booster: Any, facts: xgb.Facts, signature: Signature) -> Any:
    """How a batch becomes data: with categories where the model has them."""
    import pandas as pd

    known = xgb.categories_of(booster)

    def data(batch: Batch) -> Any:
        found = tables.data_of(batch, signature)
        if not signature.table or not facts.categorical:
            return found
        if known:
            return tables.with_categories(found, known, refuse_unseen=True)
        for name in facts.categorical:
            kind = found[name].dtype
            if not isinstance(kind, pd.CategoricalDtype) and not pd.api.types.is_numeric_dtype(kind):
                raise ModelError(
                    f"column {name!r} is categorical, and the model does not keep the names of its categories",
                    remedy="Give its codes, or train the model again with XGBoost 3.1 or later",
                )
        return found

    return data


def _missing(described: Model) -> float:
    return float(described.options.get("missing", "nan"))


def _threads(described: Model) -> int | None:
    """The threads asked for; None where the model is to use its own number of them."""
    given = described.options.get("threads")
    try:
        return None if given is None else int(given)
    except ValueError as error:
        raise UsageError(f"threads is {given!r}", remedy="Give a number, such as 1") from error


def _details(booster: Any, facts: xgb.Facts, wrapper: Any, *, used: int) -> Mapping[str, Any]:
    import xgboost

    details: dict[str, Any] = {
        "xgboost": xgboost.__version__,
        "model": type(wrapper if wrapper is not None else booster).__name__,
        "objective": facts.objective,
        "booster": facts.kind,
        "rounds": facts.rounds,
        "rounds_used": used,
        "threads": facts.threads,
        "features": facts.features,
        "categorical_features": list(facts.categorical),
        "base_score": list(facts.base_score),
    }
    if facts.best_round is not None:
        details["best_iteration"] = facts.best_round
        if used == facts.rounds > facts.best_round + 1:
            details["warnings"] = [
                f"training stopped early at round {facts.best_round}, and Booster.predict takes all {facts.rounds} "
                "rounds unless told otherwise: so does this check (option best_iteration=true takes the best)"
            ]
    if wrapper is not None:
        details["missing"] = str(wrapper.missing)
    return details


EXTENSION = XgboostAdapter()
