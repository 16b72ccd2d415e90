"""PyTorch: live modules, exported programs (.pt2), TorchScript (.pt, .jit, .ts), weights with a factory.

A module is asked in eval mode and under inference mode, on its own device and in its own type; that
it was found in training mode is reported, because its export may have kept dropout alive.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import Any

from likewise import rowaxes
from likewise.contracts.data import Array, Batch, Tensors
from likewise.contracts.models import InputSpec, Model, Signature
from likewise.errors import LikewiseError, ModelError, UsageError, extra, nearest, one_line
from likewise.modules import answering, describing, loading
from likewise.modules.describing import Parameter
from likewise.quieting import quietly

OPTIONS = ("factory", "dtype", "batch_axis", "trusted")


class TorchAdapter:
    """All knowledge of PyTorch."""

    framework = "torch"
    modules = ("torch",)

    def claims(self, target: object) -> bool:
        if isinstance(target, str | PathLike):
            return str(target).lower().endswith(loading.SUFFIXES)
        torch = sys.modules.get("torch")
        if torch is None or isinstance(target, type) or not hasattr(torch, "nn"):
            return False
        return isinstance(target, torch.nn.Module) or _is_program(target)

    @contextmanager
    def open(self, model: Model) -> Iterator[TorchRunner]:
        with extra("torch", needed_for=f"reading {model.name}"):
            import torch  # noqa: F401
        for key in model.options:
            if key not in OPTIONS:
                raise UsageError(
                    f"the torch adapter has no option {key!r}{nearest(key, OPTIONS)}",
                    remedy=f"It has: {', '.join(OPTIONS)}",
                )
        stored = isinstance(model.target, str | PathLike)
        found, form = loading.load(model) if stored else (model.target, "live module")
        if _is_program(found):
            yield _opened_program(found, model)
            return
        with answering.evaluating(found) as training:
            yield _opened_module(found, form, training, model)


class TorchRunner:
    """A module that answers batches."""

    def __init__(
        self,
        module: Any,
        parameters: Sequence[Parameter] | None,
        inputs: tuple[InputSpec, ...] | None,
        details: Mapping[str, Any],
        model: Model,
    ) -> None:
        self.native = self._module = module
        self.details = details
        self._parameters = parameters
        self._device = describing.device_of(module)
        self._fed_along = rowaxes.said_of(model)
        self._row_axes: dict[str, int] | None = None
        self._seen: dict[str, Array] = {}
        sizes = {spec.shape[0] if spec.shape else None for spec in inputs or ()}
        fixed = sizes.pop() if len(sizes) == 1 else None
        self.signature = Signature(inputs, None, batch=fixed if isinstance(fixed, int) else None)

    def run(self, batch: Batch, *, outputs: frozenset[str] | None = None) -> Tensors:
        inputs = dict(batch.inputs)
        if not batch.stacked:
            return self._ask(inputs)
        if not len(batch):
            return self._nothing(inputs)
        answers = self._ask(self._laid_out(inputs))
        if self._row_axes is None:
            self._row_axes = self._learnt(inputs, answers)
        rows = {name: rowaxes.to_front(array, self._row_axes.get(name, 0)) for name, array in answers.items()}
        self._seen = {name: array[:0] for name, array in rows.items() if array.ndim}
        return rows

    def _ask(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        try:
            return answering.arrays_of(answering.ask(self._module, inputs, self._parameters, self._device))
        except LikewiseError:
            raise
        except Exception as error:
            given = ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in inputs.items())
            raise ModelError(
                f"it raised {one_line(error)}; it was given {given}",
                remedy="Leave out columns that are not features with --drop, name inputs with --feed, "
                "or say which type it takes with the option dtype",
            ) from error

    def _laid_out(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Rows where the module has them."""
        axes = self._fed_along
        return {name: rowaxes.from_front(array, axes.of(name, array.ndim) or 0) for name, array in inputs.items()}

    def _learnt(self, inputs: Mapping[str, Array], answers: Mapping[str, Array]) -> dict[str, int]:
        """Where the rows of each answer lie, found by asking for one row less: hidden states hide them inside."""
        import numpy as np

        if self.signature.batch is not None:
            return {}
        rows = len(next(iter(inputs.values())))
        others = rows - 1 if rows > 1 else 2
        fewer = {name: np.resize(array, (others, *array.shape[1:])) for name, array in inputs.items()}
        try:
            return answering.growing_axes(answers, self._ask(self._laid_out(fewer)), (rows, others))
        except ModelError:  # it takes this number of rows only
            return {}

    def _nothing(self, inputs: Mapping[str, Array]) -> Tensors:
        """The answer to no rows; some operators refuse an empty batch, and then the shapes seen before tell it."""
        try:
            answers = self._ask(self._laid_out(inputs))
            return {name: rowaxes.to_front(a, (self._row_axes or {}).get(name, 0)) for name, a in answers.items()}
        except ModelError:
            if not self._seen:
                raise
            return self._seen


def _opened_module(module: Any, form: str, training: list[str], model: Model) -> TorchRunner:
    parameters = describing.parameters_of(module)
    inputs = describing.inputs_of(module, parameters, model.options.get("dtype"))
    warnings = []
    if training:
        some = ", ".join(training[:3]) + (f" and {len(training) - 3} more" if len(training) > 3 else "")
        warnings.append(
            f"{model.name} was in training mode ({some}) and was evaluated in eval mode; "
            "call model.eval() before it is exported"
        )
    if stubborn := list(answering.training_parts(module)):
        warnings.append(f"{', '.join(stubborn[:3])} of {model.name} stays in training mode: its answers may be random")
    facts = {**describing.details(module, form), "training_mode": bool(training), "warnings": warnings}
    return TorchRunner(module, parameters, inputs, facts, model)


def _opened_program(program: Any, model: Model) -> TorchRunner:
    inputs, parameters = describing.program_inputs(program), describing.program_parameters(program)
    live = describing.live_training(program)
    warnings = (
        [f"{model.name} was captured in training mode: {', '.join(live[:3])} acts as in training"] if live else []
    )
    with quietly():
        module = program.module()
    facts = {
        **describing.details(module, "torch.export"),
        "module": type(program).__name__,
        "training_mode": bool(live),
        "sizes": describing.program_sizes(program),
        "warnings": warnings,
    }
    return TorchRunner(module, parameters, inputs, facts, model)


def _is_program(target: object) -> bool:
    return any(cls.__module__.startswith("torch.export") for cls in type(target).__mro__) and hasattr(
        target, "graph_signature"
    )


EXTENSION = TorchAdapter()
