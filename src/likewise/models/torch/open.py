"""PyTorch: live modules, exported programs (.pt2), TorchScript (.pt, .jit, .ts), weights with a factory.

A module is asked in eval mode and under inference mode, on its own device, in the type of the data or, where it
refuses that, of its weights. That it was found in training mode is reported: its export may have kept dropout alive.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from typing import Any

from likewise.contracts.data import Array, Batch, Tensors
from likewise.contracts.models import IN_TRAINING, PARAMETERS, Adapter, InputSpec, Model, Signature
from likewise.contracts.values import dataclass
from likewise.data.columns import numpy_dtype
from likewise.errors import LikewiseError, ModelError, UsageError, extra, one_line
from likewise.models import quietly, require_known
from likewise.models.arrays import RowAxes, entries_of, only_batch, row_axis_of
from likewise.models.torch import load

AS_THE_DATA = "data"
"""The value of the option `dtype` that leaves every column as it is."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One input of `forward`; `keyword` where it can only be given by name."""

    name: str
    optional: bool = False
    keyword: bool = False


def parameters_of(module: Any) -> tuple[Parameter, ...] | None:
    """The inputs of `forward` by name; None if it takes whatever it is given (`*args`)."""
    schema = getattr(module.forward, "schema", None)  # TorchScript's, which has no signature of Python
    if schema is not None:
        arguments = schema.arguments[1:]
        return tuple(Parameter(a.name, a.has_default_value(), a.kwarg_only) for a in arguments)
    found = inspect.signature(module.forward).parameters.values()
    named = [p for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if not named:
        return None
    return tuple(Parameter(p.name, p.default is not p.empty, p.kind is p.KEYWORD_ONLY) for p in named)


def inputs_of(module: Any, parameters: Sequence[Parameter] | None, dtype: str | None) -> tuple[InputSpec, ...] | None:
    """The inputs of a module as the data has to feed them."""
    if parameters is None:
        return None
    kinds = (getattr(part, "original_name", type(part).__name__) for part in module.modules())
    embeds = dtype is None and any("Embedding" in kind for kind in kinds)
    return fed_inputs(parameters, dtype, weights=_weights_dtype(module), embeds=embeds)


def fed_inputs(
    parameters: Sequence[Parameter], dtype: str | None, *, weights: str | None, embeds: bool
) -> tuple[InputSpec, ...]:
    """The inputs, by the type of the weights and by whether there is an embedding.

    Nothing in a module says which types it takes. What it refuses in the type of the data is cast to the
    type of the weights: fractions, and whole numbers where they cannot be indices, that is where there is
    one input and no embedding. `dtype` overrules this.
    """
    required = [p for p in parameters if not p.optional] or list(parameters[:1])
    lone = len(required) == 1
    if dtype is None:
        wanted, indices = weights, not lone or embeds
    else:
        wanted, indices = _stated(dtype), False
    return tuple(
        InputSpec(
            p.name,
            wanted,
            optional=p.optional,
            floating=indices or p.optional,
            guessed=dtype is None,
            stackable=lone and p in required,
        )
        for p in parameters
    )


def _stated(dtype: str) -> str | None:
    try:
        return None if dtype == AS_THE_DATA else str(numpy_dtype(dtype))
    except (TypeError, AttributeError) as error:
        raise UsageError(
            f"dtype is {dtype!r}", remedy=f"Give a type such as float32 or int64, or {AS_THE_DATA!r} to cast nothing"
        ) from error


def program_values(program: Any) -> dict[str, Any]:
    """The inputs of an exported program by name: tensors without content, as it was captured with."""
    found = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    return {name: found.get(name) for name in program.graph_signature.user_inputs}


def program_inputs(program: Any) -> tuple[InputSpec, ...]:
    """The inputs of an exported program, with the types and shapes it was captured with."""
    specs = []
    for name, value in program_values(program).items():
        if not hasattr(value, "dtype"):
            raise ModelError(
                f"the exported program takes {name!r} as something other than a tensor",
                remedy="Capture it with tensors only: wrap the module in one whose forward takes tensors",
            )
        shape = tuple(dim if isinstance(dim, int) else None for dim in value.shape)
        specs.append(InputSpec(name, _numpy_name(value.dtype), shape))
    return tuple(specs)


def program_parameters(program: Any) -> tuple[Parameter, ...]:
    """The same inputs as parameters: those captured by position refuse to be named, and the reverse."""
    positional, named = program.call_spec.in_spec.children()
    names = list(program.graph_signature.user_inputs)
    if len(names) != positional.num_leaves + named.num_leaves or any(
        not child.is_leaf() for spec in (positional, named) for child in spec.children()
    ):
        raise ModelError(
            "the exported program takes nested inputs, which columns cannot feed",
            remedy="Capture a module whose forward takes plain tensors",
        )
    by_name = [Parameter(str(name), keyword=True) for name in named.context or ()]
    return (*(Parameter(name) for name in names[: positional.num_leaves]), *by_name)


def program_sizes(program: Any) -> dict[str, str]:
    """The sizes that an exported program was captured for, by symbol: below the least it may be silently wrong."""
    found = {}
    for name, bound in program.range_constraints.items():
        most = f"to {bound.upper}" if str(bound.upper).isdigit() else "or more"
        found[str(name)] = f"{bound.lower} {most}"
    return found


def program_rows(program: Any, model: Model) -> tuple[int, int] | None:
    """The least and the most rows that an exported program was captured for; None where it states no end."""
    said = RowAxes.said_of(model)
    for name, value in program_values(program).items():
        if said.has_rows(name):
            size = value.shape[said.of(name, len(value.shape)) or 0] if value.shape else 0
            bound = None if isinstance(size, int) else program.range_constraints.get(size.node.expr)
            if bound is not None and str(bound.upper).isdigit():
                return int(bound.lower), int(bound.upper)
    return None


def live_training(program: Any) -> list[str]:
    """The operators of an exported program that were captured in training mode."""
    flags = {"dropout": 2, "native_dropout": 2, "batch_norm": 5, "feature_dropout": 2, "alpha_dropout": 2}
    found = []
    for node in program.graph.nodes:
        place = flags.get(str(node.target).split(".")[1] if str(node.target).startswith("aten.") else "")
        if place is not None and len(node.args) > place and node.args[place] is True:
            found.append(node.name)
    return found


def _weights_dtype(module: Any) -> str | None:
    """The type of the first floating parameter or buffer; None if there is none."""
    first = next((tensor for tensor in _state(module) if tensor.is_floating_point()), None)
    return None if first is None else _numpy_name(first.dtype)


def device_of(module: Any) -> Any:
    """Where the module's state lies."""
    import torch

    first = next(_state(module), None)
    return torch.device("cpu") if first is None else first.device


def _numpy_name(dtype: Any) -> str:
    """What numpy calls a type of torch."""
    return str(dtype).removeprefix("torch.")


def details(module: Any, what: str) -> Mapping[str, Any]:
    """Facts for the record and for `likewise inspect`."""
    import torch

    kind = getattr(module, "original_name", None) or f"{type(module).__module__}.{type(module).__qualname__}"
    return {
        "torch": torch.__version__,
        "form": what,
        "module": kind,
        PARAMETERS: sum(tensor.numel() for tensor in module.parameters()),
        "dtype": _weights_dtype(module),
        "device": str(device_of(module)),
        "threads": torch.get_num_threads(),
    }


def _state(module: Any) -> Iterator[Any]:
    from itertools import chain

    return chain(module.parameters(), module.buffers())


LONE = "output"
"""What an answer without a name is called; the entries of a lone tuple are `output.0`, `output.1`."""

OPTIONS = ("factory", "dtype", "batch_axis")

PROGRAM = "likewise.program"
"""Where the module of an exported program keeps that program, in its `meta`."""


def training_parts(module: Any) -> dict[str, Any]:
    """The parts in training mode by their path. The module of a captured program has no modes, whatever it says."""
    if "eval" in vars(module):
        return {}
    found = module.named_modules()
    # Frozen TorchScript has no modes.
    return {name or type(module).__name__: part for name, part in found if getattr(part, "training", False)}


@contextmanager
def _evaluating(module: Any) -> Iterator[list[str]]:
    """The module in eval mode, then as it was; what was found in training mode is listed."""
    training = training_parts(module)
    if training:
        module.eval()
    try:
        yield list(training)
    finally:
        # Part by part, because some may have been in eval mode on purpose.
        for part in training.values():
            part.training = True


def bound(tensors: Mapping[str, Any], parameters: Sequence[Parameter] | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """By position as far as that goes, because hooks and captured programs know no names; the rest by name."""
    if parameters is None:
        return tuple(tensors.values()), {}
    positional, named = [], dict(tensors)
    for parameter in parameters:
        if parameter.keyword or parameter.name not in named:
            break
        positional.append(named.pop(parameter.name))
    return tuple(positional), named


def tensor_of(array: Array) -> Any:
    """The array as a tensor of the same type."""
    import numpy as np
    import torch

    # Row axes may have been moved, and torch takes neither negative strides nor memory it may not write to.
    array = np.require(array, requirements=["C", "W"])
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    if array.dtype.kind not in "biufc":
        raise ModelError(
            f"a tensor cannot hold {'text' if array.dtype.kind in 'OUST' else array.dtype}",
            remedy="Leave the column out with --drop, or give numbers",
        )
    return torch.from_numpy(array)


def flatten(answer: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every tensor and number of an answer with the path that leads to it; what is None is left out."""
    entries = entries_of(answer)
    if answer is None:
        return
    if entries is None:
        yield name or LONE, answer
        return
    for key, entry in entries:
        path = f"{name}.{key}" if name else key if not key.isdigit() else f"{LONE}.{key}"
        yield from flatten(entry, path)


def _arrays_of(answer: Any) -> dict[str, Array]:
    """An answer as arrays by name."""
    arrays: dict[str, Array] = {}
    for name, value in flatten(answer):
        if name in arrays:
            raise ModelError(f"it answers {name!r} twice", remedy="Give each answer a name of its own")
        arrays[name] = _array(value)
    if not arrays:
        raise ModelError("it returned nothing", remedy="Return a tensor, or tensors in a dict or tuple")
    return arrays


def _array(value: Any) -> Array:
    """A tensor or a number; anything else, such as the cache of a language model, as the object that it is."""
    import numpy as np
    import torch

    if isinstance(value, bool | int | float):
        return np.asarray(value)
    if not isinstance(value, torch.Tensor):
        thing = np.empty((), dtype=object)
        thing[()] = value
        return thing
    dense = value.detach().cpu()
    dense = dense.to_dense() if dense.layout is not torch.strided else dense
    dense = dense.dequantize() if dense.is_quantized else dense
    narrow = dense.is_floating_point() and dense.dtype not in (torch.float16, torch.float32, torch.float64)
    # Copied: a module may give out the memory of its own state, or of its input.
    array: Array = (dense.float() if narrow else dense).numpy().copy()
    return array


class TorchAdapter(Adapter):
    """All knowledge of PyTorch."""

    framework = "torch"
    modules = ("torch",)

    def claims(self, target: object) -> bool:
        if isinstance(target, str | PathLike):
            return str(target).lower().endswith(load.SUFFIXES)
        torch = sys.modules.get("torch")
        if torch is None or isinstance(target, type) or not hasattr(torch, "nn"):
            return False
        return isinstance(target, torch.nn.Module) or _is_program(target)

    @contextmanager
    def open(self, model: Model) -> Iterator[TorchRunner]:
        with extra("torch", needed_for=f"reading {model.name}"):
            import torch  # noqa: F401
        require_known(model, OPTIONS)
        stored = isinstance(model.target, str | PathLike)
        found, form = load.load(model) if stored else (model.target, "live module")
        if _is_program(found):
            yield _opened_program(found, model)
            return
        with _evaluating(found) as training:
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
        rows: tuple[int, int] | None = None,
    ) -> None:
        self.native = self._module = module
        self.details = details
        self._parameters = parameters
        self._said = RowAxes.said_of(model)
        self._rows = rows
        self._row_axes: dict[str, int] | None = None
        self._seen: dict[str, Array] = {}
        fed = None if inputs is None else tuple(self._rows_first(spec) for spec in inputs)
        self.signature = Signature(fed, None, batch=only_batch([s for s in fed or () if self._said.has_rows(s.name)]))

    def run(self, batch: Batch, *, outputs: frozenset[str] | None = None) -> Tensors:
        inputs = dict(batch.inputs)
        if not batch.stacked:
            return self._ask(inputs)
        if not len(batch):
            return self._nothing(inputs)
        self._require_rows(len(batch))
        answers = self._ask(self._laid_out(inputs))
        if self._row_axes is None:
            self._row_axes = self._learnt(inputs, answers)
            self.signature = replace(self.signature, row_axes=self._row_axes)
        axes = self._row_axes
        rows = {n: self._said.answered(n, array, axes.get(n, 0), len(batch)) for n, array in answers.items()}
        self._seen = {name: array[:0] for name, array in rows.items() if array.ndim}
        return rows

    def _require_rows(self, rows: int) -> None:
        """A program may be silently wrong where it was not captured for."""
        least, most = self._rows or (rows, rows)
        if not least <= rows <= most:
            raise ModelError(
                f"it was captured for {least} to {most} rows, and is asked about {rows}",
                remedy=f"Use --batch-size {most} --fixed-batch with rows that leave at least {least} for the last "
                "call, or capture it for more sizes: torch.export.Dim",
            )

    def _rows_first(self, spec: InputSpec) -> InputSpec:
        axis = self._said.of(spec.name, len(spec.shape or ())) or 0
        told = self._said.of(spec.name, sys.maxsize)
        return replace(spec, shape=self._said.rows_first(spec.name, spec.shape, axis), row_axis=told)

    def _ask(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        import torch

        try:
            device = device_of(self._module)
            tensors = {name: tensor_of(array).to(device) for name, array in inputs.items()}
            args, kwargs = bound(tensors, self._parameters)
            with torch.inference_mode():
                answer = self._module(*args, **kwargs)
            return _arrays_of(answer)
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
        said = self._said
        return {name: said.placed(name, array, said.of(name, array.ndim) or 0) for name, array in inputs.items()}

    def _learnt(self, inputs: Mapping[str, Array], answers: Mapping[str, Array]) -> dict[str, int]:
        """Where the rows of each answer lie, found by asking for one row less: hidden states hide them inside."""
        import numpy as np

        if self.signature.batch is not None:
            return {}
        rows = len(next(iter(inputs.values())))
        others = rows - 1 if rows > 1 else 2
        fewer = {name: np.resize(array, (others, *array.shape[1:])) for name, array in inputs.items()}
        try:
            again = self._ask(self._laid_out(fewer))
        except ModelError:  # it takes this number of rows only
            return {}
        shapes = {name: again[name].shape if name in again else () for name in answers}
        return {n: row_axis_of(a.shape, shapes[n], rows=rows, others=others) for n, a in answers.items()}

    def _nothing(self, inputs: Mapping[str, Array]) -> Tensors:
        """The answer to no rows; some operators refuse an empty batch, and then the shapes seen before tell it."""
        try:
            answers = self._ask(self._laid_out(inputs))
            axes = self._row_axes or {}
            return {name: self._said.answered(name, a, axes.get(name, 0), 0) for name, a in answers.items()}
        except ModelError:
            if not self._seen:
                raise
            return self._seen


def _opened_module(module: Any, form: str, training: list[str], model: Model) -> TorchRunner:
    parameters = parameters_of(module)
    inputs = inputs_of(module, parameters, model.options.get("dtype"))
    warnings = []
    if form == load.STATE_DICT:
        training = []  # as every module that was just made, which says nothing of the file
    if training:
        some = ", ".join(training[:3]) + (f" and {len(training) - 3} more" if len(training) > 3 else "")
        warnings.append(
            f"{model.name} was in training mode ({some}) and was evaluated in eval mode; "
            "call model.eval() before it is exported"
        )
    if stubborn := list(training_parts(module)):
        warnings.append(f"{', '.join(stubborn[:3])} of {model.name} stays in training mode: its answers may be random")
    modes = {"training_mode": bool(training), IN_TRAINING: bool(stubborn)}
    facts = {**details(module, form), **modes, "warnings": warnings}
    return TorchRunner(module, parameters, inputs, facts, model)


def _opened_program(program: Any, model: Model) -> TorchRunner:
    inputs, parameters = program_inputs(program), program_parameters(program)
    live = live_training(program)
    warnings = (
        [f"{model.name} was captured in training mode: {', '.join(live[:3])} acts as in training"] if live else []
    )
    with quietly():
        module = program.module()
    module.meta[PROGRAM] = program
    facts = {
        **details(module, "torch.export"),
        "module": type(program).__name__,
        "training_mode": bool(live),
        IN_TRAINING: bool(live),
        "sizes": program_sizes(program),
        "warnings": warnings,
    }
    return TorchRunner(module, parameters, inputs, facts, model, program_rows(program, model))


def _is_program(target: object) -> bool:
    return any(cls.__module__.startswith("torch.export") for cls in type(target).__mro__) and hasattr(
        target, "graph_signature"
    )


EXTENSION = TorchAdapter()
