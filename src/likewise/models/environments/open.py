"""A model that another Python opens and asks: with the packages it was trained with, in a container, on a machine.

ONNX graphs are described here and run there; estimators and boosters are described there; functions that a user names
get what they would get here. A pickle runs code where it is opened, and over there nothing restricts it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from likewise import errors
from likewise.contracts.data import Array, Batch, Tensors
from likewise.contracts.models import PLACES, Adapter, Elsewhere, InputSpec, Kind, Model, OutputSpec, Runner, Signature
from likewise.data.columns import ArrowColumns
from likewise.errors import ModelError, UntrustedModelError, UsageError, nearest
from likewise.models.arrays import RowAxes
from likewise.models.environments.far_worker import COMPRESSED, NETWORKS, PICKLES
from likewise.models.environments.place import Connection, FarPythonError, Place, connected
from likewise.models.environments.wire import Numbers, pack, unpack
from likewise.models.onnx import describe
from likewise.models.onnx.open import OnnxRunner
from likewise.models.python import SPECIFICATION, PythonRunner
from likewise.models.remote import Apart
from likewise.models.torch.open import Parameter, TorchRunner, bound, fed_inputs, flatten

GRAPHS = (".onnx", ".ort")
BOOSTERS = (".json", ".ubj", ".xgb", ".txt", ".lgb", ".lgbm", ".model", ".cbm")
COMPILED = (".xml",)
OPTIONS = {
    GRAPHS: ("optimization", "threads", "batch_axis"),
    NETWORKS: ("dtype", "batch_axis"),
    COMPILED: ("batch_axis",),
}
LARGEST_SENT = 1 << 31
"""Bytes of a file that are sent; of a larger graph, and of one with weights beside it, the path is."""


def elsewhere(
    model: str | os.PathLike[str],
    *,
    python: str | os.PathLike[str] | None = None,
    packages: str | Sequence[str] = (),
    command: str | Sequence[str] = (),
) -> Elsewhere:
    """A model that another Python opens: give it to `check` in the place of a path.

    `python` is an interpreter; `packages` are installed for it (or for this one), such as `["scikit-learn==1.2.2"]`;
    `command` starts a Python in some other way, such as `docker run -i --rm image python`.
    """
    options = {"python": python and os.fspath(python), "with": packages, "command": command}
    if Place.of(options) is None:
        raise UsageError("nothing says where the model is opened", remedy="Give python, packages or command")
    return Elsewhere(os.fspath(model), {name: value for name, value in options.items() if value})


class EnvironmentAdapter(Adapter):
    """Opens what the options `python`, `with` and `command` of a model send elsewhere."""

    framework = "environments"
    holds_interpreter = False
    elsewhere = True

    def claims(self, target: object) -> bool:
        return False  # no target is ours by itself: the options say so

    @contextmanager
    def open(self, model: Model) -> Iterator[Runner]:
        place = Place.of(model.options)
        if place is None:
            raise UsageError("nothing says which Python opens the model", remedy="Give option python, with or command")
        question, files = _question(model)
        with connected(place) as line:
            hello = line.hello()
            line.models += 1
            number = line.models
            answer, _ = line.ask("open", {"model": number, **question}, files)
            about = {**_about(place, hello), "packages": dict(answer["versions"])}
            try:
                yield FarRunner(_runner(model, line, number, answer["described"]), about)
            finally:
                if line.kept and not line.gone:
                    line.ask("close", {"model": number})


def _question(model: Model) -> tuple[dict[str, Any], list[bytes]]:
    """How another Python is asked to open a model, and the files that go along."""
    if not isinstance(model.target, str | os.PathLike):
        told = f"a live {type(model.target).__name__} cannot be opened by another Python"
        raise ModelError(told, remedy="Save the model, and give its path")
    target = os.fspath(model.target)
    name = target.lower()
    for suffix in COMPRESSED:
        name = name.removesuffix(suffix)
    _require_options(model, next((taken for kind, taken in OPTIONS.items() if name.endswith(kind)), ()))
    if (found := SPECIFICATION.match(target)) and not os.path.lexists(target):
        place = os.path.abspath(found["place"]) if found["place"].endswith(".py") else found["place"]
        return {"place": place, "attribute": found["attribute"]}, []
    if not name.endswith((*GRAPHS, *PICKLES, *BOOSTERS, *NETWORKS, *COMPILED)):
        raise ModelError(
            f"another Python cannot open {target}",
            remedy="It opens .onnx, .joblib, .pkl, .skops, .pt, .pt2, .xml of OpenVINO, files of XGBoost, LightGBM and "
            "CatBoost, and `file.py:function`",
        )
    if not os.path.isfile(target):
        raise ModelError(f"there is no file {target}", remedy="Check the path of the model")
    trusted = "*" in tuple(model.options.get("trusted", ()))
    if name.endswith((*PICKLES, *NETWORKS)) and not trusted:
        kind = "pickle" if name.endswith(PICKLES) else "program"
        raise UntrustedModelError(
            f"{target} is a {kind}: another Python would run whatever is in it, without the list of what is harmless",
            remedy="If you trust whoever made it, say --trust; in Python, trusted=['*']",
        )
    options = {key: value for key, value in model.options.items() if key in OPTIONS[GRAPHS]}
    question: dict[str, Any] = {"name": target, "options": options, "trusted": trusted}
    if os.path.getsize(target) >= LARGEST_SENT or (name.endswith(GRAPHS) and describe.beside(Path(target))):
        return {**question, "path": os.path.abspath(target)}, []
    files = [Path(target), *([Path(target).with_suffix(".bin")] if name.endswith(COMPILED) else [])]
    if not files[-1].is_file():
        raise ModelError(f"there is no file {files[-1]}", remedy="Keep the weights beside the .xml")
    return question, [file.read_bytes() for file in files]


def _require_options(model: Model, taken: Sequence[str]) -> None:
    known = (*taken, *PLACES, "trusted")
    for key in model.options:
        if key not in known:
            told = f"a model that another Python opens has no option {key!r}{nearest(key, known)}"
            raise UsageError(told, remedy=f"Its options: {', '.join(known[:-1])}")


def _about(place: Place, hello: Mapping[str, Any]) -> dict[str, Any]:
    """Where the model runs, for the record."""
    # What a command starts is outside our walls, whatever it says of itself.
    walls = "" if place.command else str(hello.get("confinement") or "")
    about: dict[str, Any] = {"opened_by": place.name, "python": str(hello["python"])}
    about["confinement"] = walls or "none: it was started as it is"
    if errors.confined and not walls:
        about["warnings"] = [f"it ran outside the walls that confine models here: {place.name} was started as it is"]
    return about


class FarRunner(Apart):
    """A model in another Python, and where that is."""

    native = None

    def __init__(self, inner: Runner, about: Mapping[str, Any]) -> None:
        self._inner, self._about = inner, about

    @property
    def signature(self) -> Signature:
        return self._inner.signature

    @property
    def details(self) -> Mapping[str, Any]:
        inner = {name: value for name, value in self._inner.details.items() if name not in self._about}
        notes = [*self._inner.details.get("warnings", ()), *self._about.get("warnings", ())]
        return {**inner, **self._about, **({"warnings": notes} if notes else {})}

    def run(self, batch: Batch, *, outputs: frozenset[str] | None = None) -> Tensors:
        return self._inner.run(batch, outputs=outputs)


def _runner(model: Model, line: Connection, number: int, described: Mapping[str, Any]) -> Runner:
    def ask(rows: Any, wanted: frozenset[str] | None = None) -> Any:
        buffers: list[Any] = []
        try:
            packed = pack(rows, buffers)
        except TypeError as error:
            raise ModelError(
                str(error), remedy="Give the column in a type of numpy, as text or as a category"
            ) from error
        question = {"model": number, "rows": packed, "wanted": None if wanted is None else sorted(wanted)}
        answer, found = line.ask("run", question, buffers)
        try:
            return unpack(answer["answers"], found)
        except (AttributeError, ImportError, LookupError, TypeError, ValueError) as error:
            raise FarPythonError(f"{line.place.name} said something that is not an answer: {error}") from error

    if "graph" in described:
        settings = {name: described[name] for name in ("providers", "optimization")}
        plain = replace(model, options={k: v for k, v in model.options.items() if k not in PLACES})
        return OnnxRunner(plain, lambda *_: _FarSession(ask, list(described["graph"]), settings))
    if "callable" in described:
        return PythonRunner(ask, str(model.target))
    if "network" in described:
        return FarNetwork(ask, described, model)
    return FarEstimator(ask, described, model.name)


class FarNetwork(TorchRunner):
    """A network of PyTorch or OpenVINO: what it is given here, it is given there."""

    def __init__(self, ask: Any, described: Mapping[str, Any], model: Model) -> None:
        self._far = ask
        told = list(described["inputs"])
        parameters = [Parameter(p["name"], p.get("optional", False), p.get("keyword", False)) for p in told]
        said, rows = RowAxes.said_of(model), None
        if any("dtype" in entry for entry in told):
            inputs = tuple(InputSpec(p["name"], p["dtype"], p["shape"] and tuple(p["shape"])) for p in told)
            bounds = [(p["bounds"], said.of(p["name"], len(p["bounds"])) or 0) for p in told if p.get("bounds")]
            rows = next(((found[axis][0], found[axis][1]) for found, axis in bounds if found[axis]), None)
        else:
            about = {"weights": described["weights"], "embeds": described["embeds"]}
            inputs = fed_inputs(parameters, model.options.get("dtype"), **about)
        super().__init__(None, parameters, inputs, {"module": described["network"]}, model, rows)

    def _ask(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        import numpy as np

        given, named = bound(inputs, self._parameters)
        return {name: np.asarray(value) for name, value in flatten(self._far({"given": given, "named": named}))}


class _FarSession:
    """A graph that another Python's ONNX Runtime runs."""

    def __init__(self, ask: Any, outputs: Sequence[str], settings: Mapping[str, Any]) -> None:
        self._ask, self.outputs, self.settings = ask, outputs, settings

    def run(self, inputs: Mapping[str, Array]) -> Sequence[Any]:
        answers: Sequence[Any] = self._ask(dict(inputs))
        return answers


class FarEstimator:
    """An estimator or a booster as it describes itself over there."""

    native = None

    def __init__(self, ask: Any, described: Mapping[str, Any], name: str) -> None:
        self._ask, self._name = ask, name
        self._seen: dict[str, Array] = {}
        self.signature = _signature(described)
        self.details: Mapping[str, Any] = {
            name: described[name] for name in ("estimator", "objective") if name in described
        }

    def run(self, batch: Batch, *, outputs: frozenset[str] | None = None) -> Tensors:
        wanted = frozenset(
            spec.name for spec in self.signature.outputs or () if outputs is None or spec.name in outputs
        )
        if not len(batch) and self._seen.keys() >= wanted:
            return {name: self._seen[name] for name in wanted}
        found = self._ask(self._rows(batch), wanted)
        if (
            not isinstance(found, dict)
            or found.keys() != wanted
            or any(not hasattr(a, "dtype") for a in found.values())
        ):
            raise FarPythonError(f"{self._name} gives different outputs than it declared")
        self._seen |= {name: array[:0] for name, array in found.items()}
        return found

    def _rows(self, batch: Batch) -> Any:
        if self.signature.inputs is not None and not self.signature.table:
            return batch.inputs["X"]
        only = next(iter(batch.inputs.values())) if len(batch.inputs) == 1 and not self.signature.table else None
        if only is not None and only.ndim > 1:
            return only
        if isinstance(batch.inputs, ArrowColumns) and len(batch.inputs) and batch.inputs.are_plain_numbers():
            named = self.signature.inputs if self.signature.underscored else None
            names = [spec.name for spec in named] if named is not None else list(batch.inputs)
            return Numbers(dict(zip(names, batch.inputs.values(), strict=True)))
        frame = batch.inputs.frame()
        frame = frame.to_pandas() if hasattr(frame, "to_pandas") else frame
        if self.signature.underscored and self.signature.inputs is not None:
            frame = frame.set_axis([spec.name for spec in self.signature.inputs], axis=1)
        return frame


def _signature(described: Mapping[str, Any]) -> Signature:
    given = list(described["outputs"])
    names = [entry["name"] for entry in given]
    scored = any(entry["name"] == "scores" and entry["classes"] for entry in given)
    by_scores = scored and described.get("by_scores") is True
    decided_by = "scores" if by_scores or "probabilities" not in names else "probabilities"
    outputs = tuple(
        OutputSpec(
            entry["name"],
            Kind(entry["kind"]),
            classes=None if entry["classes"] is None else tuple(entry["classes"]),
            view=True,
            decided_by=decided_by if entry["name"] == "label" and entry["classes"] and decided_by in names else None,
        )
        for entry in given
    )
    if columns := described.get("columns"):
        underscored = described.get("underscored") is True
        return Signature(tuple(InputSpec(str(n)) for n in columns), outputs, table=True, underscored=underscored)
    if described.get("text"):
        return Signature((InputSpec("X", None, (None,)),), outputs)
    count = described.get("features")
    return Signature(None if count is None else (InputSpec("X", None, (None, int(count))),), outputs)


EXTENSION = EnvironmentAdapter()
