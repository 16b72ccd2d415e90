"""ONNX models, run by ONNX Runtime as they would be deployed, or by onnx's reference evaluator as an oracle."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from likewise.contracts.data import Array, Batch, Tensors
from likewise.contracts.models import Adapter, Model, Runner
from likewise.errors import ModelError, UnavailableError, UsageError, nearest, one_line
from likewise.models.arrays import RowLayout, array_of_dicts, arrays_of_list, arrays_of_sequence, put_together, widened
from likewise.models.onnx import describe
from likewise.models.onnx.standard import ReferenceSession
from likewise.models.onnx.walk import throwing_dice

if TYPE_CHECKING:
    from onnx import ModelProto


FOLDER = "session.model_external_initializers_file_folder_path"
"""How ONNX Runtime calls the folder that external data is looked for in."""

OPTIMIZATIONS = {
    "disable": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
MOST_THREADS = 1024
"""Threads of one session: a configuration of somebody else's could ask for more than a number of the runtime holds."""

SHARED = ("runtime", "batch_axis", "trusted")
"""Options that every runtime takes."""

OPTIONS = {
    "onnxruntime": (*SHARED, "providers", "optimization", "threads", "inter_threads", "disabled_optimizers"),
    "reference": SHARED,
}

SESSION = frozenset(
    f"session.{name}"
    for name in (
        *("allow_released_opsets_only", "debug_layout_transformation", "disable_aot_function_inlining"),
        *(
            "disable_cpu_ep_fallback",
            "disable_double_qdq_remover",
            "disable_prepacking",
            "disable_qdq_constant_folding",
        ),
        *("disable_quant_qdq", "dynamic_block_base", "enable_cpu_mem_arena", "enable_dq_matmulnbits_fusion"),
        *("enable_mem_pattern", "enable_quant_qdq_cleanup", "execution_mode", "force_spinning_stop"),
        *("graph_optimizations_loop_level", "inter_op.allow_spinning", "inter_op.spin_backoff_max"),
        *("inter_op.spin_duration_us", "intra_op.allow_spinning", "intra_op.spin_backoff_max"),
        *("intra_op.spin_duration_us", "intra_op_thread_affinities", "prepack.enable_parallel"),
        *("qdq_matmulnbits_accuracy_level", "qdq_matmulnbits_block_size", "qdqisint8allowed", "set_denormal_as_zero"),
        *("strict_shape_type_inference", "use_deterministic_compute", "use_device_allocator_for_initializers"),
        *("use_env_allocators", "use_per_session_threads", "x64quantprecision"),
    )
)
"""Keys of ONNX Runtime that say how it computes. Others name files and folders that it reads or writes, or read a
file in another way than the one that was hashed."""

NARROW = {
    "bfloat16": 16,
    "float8e4m3fn": 8,
    "float8e4m3fnuz": 8,
    "float8e5m2": 8,
    "float8e5m2fnuz": 8,
    "float8e8m0": 8,
    "float4e2m1": 4,
    "int4": 4,
    "uint4": 4,
    "int2": 2,
    "uint2": 2,
}
"""Types that numpy does not have, as ONNX Runtime calls them, and their bits: such tensors pass as bytes."""


RESTING = 2**28
"""Bytes of a model from which on its session is closed while a changed copy of it is asked."""


class Session(Protocol):
    """A graph that is ready to run."""

    @property
    def outputs(self) -> Sequence[str]: ...

    @property
    def settings(self) -> Mapping[str, Any]:
        """What ran it and how, for the record."""
        ...

    def run(self, inputs: Mapping[str, Array]) -> Sequence[Any]:
        """The values of all outputs."""
        ...


def require_options(model: Model) -> None:
    """Refuse options and values that no session obeys."""
    runtime = model.options.get("runtime", "onnxruntime")
    if runtime not in tuple(OPTIONS):
        raise UsageError(f"unknown runtime {runtime!r}", remedy=f"Choose one of: {', '.join(OPTIONS)}")
    for key in model.options:
        if key not in OPTIONS[runtime] and not (key.startswith("session.") and runtime == "onnxruntime"):
            known = (*OPTIONS[runtime], "session.…") if runtime == "onnxruntime" else OPTIONS[runtime]
            raise UsageError(
                f"the onnx adapter has no option {key!r} with runtime {runtime}{nearest(key, known)}",
                remedy=f"It has: {', '.join(known)}",
            )
        if key.startswith("session.") and key not in SESSION:
            raise UsageError(
                f"{key!r} is not among the keys of ONNX Runtime that say how it computes{nearest(key, SESSION)}",
                remedy="Keys that name files or folders are not taken: keep weights beside the graph, and leave it out",
            )
    level = model.options.get("optimization", "all")
    if level not in tuple(OPTIMIZATIONS):
        raise UsageError(
            f"unknown optimization {level!r}{nearest(str(level), OPTIMIZATIONS)}",
            remedy=f"Choose one of: {', '.join(OPTIMIZATIONS)}",
        )
    for key in ("threads", "inter_threads"):
        if not str(model.options.get(key, 0)).isdecimal() or int(model.options.get(key, 0)) > MOST_THREADS:
            raise UsageError(f"{key} is {model.options[key]!r}", remedy="Give a number, such as 1; 0 is the default")
    for key in ("providers", "disabled_optimizers"):
        names = model.options.get(key, ())
        if not isinstance(names, str) and not (isinstance(names, list | tuple) and all(type(n) is str for n in names)):
            raise UsageError(f"{key} is {names!r}, which is no list of names", remedy="Give a list of names")


def open_session(model: Model, proto: ModelProto) -> Session:
    """The session that the model's options ask for."""
    require_options(model)
    plain = model.options.get("runtime", "onnxruntime") == "onnxruntime"
    return OrtSession(model) if plain else ReferenceSession(model, proto)


def plain_session(proto: ModelProto, *, optimization: str = "disable", saved: str = "") -> Any:
    """ONNX Runtime with a graph to be looked at, not run: as written, or optimised, with what comes of that saved."""
    import onnxruntime as ort

    settings = _settings(optimization)
    # What nobody multiplies with need not be laid out for it: large weights are not even read.
    settings.add_session_config_entry("session.disable_prepacking", "1")
    settings.optimized_model_filepath = saved
    return ort.InferenceSession(_content(proto, settings), settings, providers=["CPUExecutionProvider"])


def _content(proto: ModelProto, settings: Any) -> bytes:
    """A graph as a session takes it, with the settings told where its large weights are: the runtime maps them."""
    content, folder = describe.serialised(proto)
    if folder:
        settings.add_session_config_entry(FOLDER, folder)
    return content


def _settings(optimization: str) -> Any:
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    settings.graph_optimization_level = getattr(ort.GraphOptimizationLevel, OPTIMIZATIONS[optimization])
    return settings


class OrtSession:
    """ONNX Runtime with the settings asked for, or an error; never something else in silence."""

    def __init__(self, model: Model) -> None:
        self._session, self.settings = _ort_session(model)
        self.outputs = [value.name for value in self._session.get_outputs()]
        self._types = {value.name: _element(value.type) for value in self._session.get_inputs()}
        given = [_element(value.type) for value in self._session.get_outputs()]
        self._plain = not NARROW.keys() & {*self._types.values(), *given}

    def run(self, inputs: Mapping[str, Array]) -> Sequence[Any]:
        try:
            if self._plain:
                return list(self._session.run(self.outputs, dict(inputs)))
            given = {name: _to_ort(array, self._types[name]) for name, array in inputs.items()}
            return [_from_ort(value) for value in self._session.run_with_ort_values(self.outputs, given)]
        except Exception as error:  # the runtime raises many types; all mean that it did not answer
            raise ModelError(f"ONNX Runtime could not run it: {_said(error)}") from error


_AT_NODE = re.compile(
    r"\w+: Non-zero status code returned while running (\S+) node\. Name:('.*?') Status Message: "
    r"(?:/\S+:\d+ (?:.*?was false\.|.*?\) )\s*)?"
)


def _said(error: Exception) -> str:
    """What the runtime says of a node, without the line of its source that says it."""
    return _AT_NODE.sub(r"\1 \2: ", one_line(error))


def _element(kind: str) -> str:
    """`bfloat16` of `tensor(bfloat16)`."""
    return kind.rpartition("(")[2].rstrip(")")


def _ort_session(model: Model) -> tuple[Any, dict[str, Any]]:
    import onnxruntime as ort

    options = dict(model.options)
    level = options.get("optimization", "all")
    settings = _settings(level)
    settings.intra_op_num_threads = int(options.get("threads", 0))
    settings.inter_op_num_threads = int(options.get("inter_threads", 0))
    for key, value in options.items():
        if key.startswith("session."):
            settings.add_session_config_entry(key, str(value))
    providers = _providers(options.get("providers", ("CPUExecutionProvider",)), ort.get_available_providers())
    target = model.target
    if isinstance(target, PathLike):
        target = str(target)
    elif not isinstance(target, str | bytes):
        target = _content(target, settings)
    disabled = _listed(options.get("disabled_optimizers", ()))
    try:
        session = ort.InferenceSession(target, settings, providers=providers, disabled_optimizers=disabled)
    except Exception as error:  # the runtime raises many types; all mean that it does not load
        raise ModelError(
            f"ONNX Runtime cannot load {model.name}: {one_line(error)}",
            remedy="Export it with likewise export, which writes only what ONNX Runtime loads",
        ) from error
    if session.get_providers()[: len(providers)] != providers:
        raise ModelError(f"asked for {providers}, ONNX Runtime fell back to {session.get_providers()}")
    return session, {
        "onnxruntime": ort.__version__,
        "providers": session.get_providers(),
        "optimization": level,
        "threads": settings.intra_op_num_threads,
    }


def _providers(wanted: Any, available: Sequence[str]) -> list[str]:
    """The providers asked for; one that is not on this machine is an error, never a fall-back."""
    names = [name if name.endswith("Provider") else f"{name}ExecutionProvider" for name in _listed(wanted)]
    for name in names:
        if name not in available:
            import onnxruntime as ort

            known = ort.get_all_providers()
            if name not in known:
                raise ModelError(
                    f"ONNX Runtime knows no {name}{nearest(name, known)}", remedy=f"It has: {', '.join(available)}"
                )
            raise UnavailableError(f"{name} is not on this machine", remedy=f"It has: {', '.join(available)}")
    return names


def _listed(value: Any) -> list[str]:
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else list(value)


def _to_ort(array: Array, kind: str) -> Any:
    """An input by the type that the graph declares."""
    import numpy as np
    import onnxruntime as ort

    if kind not in NARROW:
        return ort.OrtValue.ortvalue_from_numpy(array)
    element, bits = _narrow(kind)
    raw = np.ascontiguousarray(array).view(np.uint16 if bits == 16 else np.uint8)
    if bits < 8:
        # ONNX Runtime reads packed values from the beginning of a buffer of the full shape.
        packed = _packed(raw.ravel() & (2**bits - 1), bits)
        raw = np.zeros_like(raw)
        raw.ravel()[: len(packed)] = packed
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, element)


def _from_ort(value: Any) -> Any:
    """An output as numpy, of the type that only machine learning has where it is one."""
    import ctypes

    import numpy as np
    from onnx.helper import tensor_dtype_to_np_dtype

    kind = str(value.data_type()).removeprefix("tensor(").removesuffix(")")
    if kind not in NARROW:
        return value.numpy()
    element, bits = _narrow(kind)
    shape = tuple(value.shape())
    size = int(np.prod(shape, dtype=np.int64))
    length = -(-size * bits // 8)
    # A copy: the memory is the runtime's own and goes with the value.
    content = np.frombuffer(ctypes.string_at(value.data_ptr(), length) if length else b"", np.uint8)
    dtype = tensor_dtype_to_np_dtype(element)
    if bits >= 8:
        return content.view(dtype).reshape(shape)
    codes = unpacked(content, bits)[:size].reshape(shape)
    if kind.startswith("int"):
        codes = ((codes.astype(np.int8) ^ 2 ** (bits - 1)) - 2 ** (bits - 1)).astype(np.int8)
    return codes.astype(dtype) if "int" in kind else codes.view(dtype)


def _narrow(kind: str) -> tuple[int, int]:
    """The ONNX type of a name of ONNX Runtime, and how many bits a value of it has."""
    from onnx import TensorProto

    return getattr(TensorProto, kind.upper()), NARROW[kind]


def _packed(codes: Array, bits: int) -> Array:
    import numpy as np

    each = 8 // bits
    padded = np.zeros(-(-len(codes) // each) * each, np.uint8)
    padded[: len(codes)] = codes
    shifted = padded.reshape(-1, each) << (np.arange(each, dtype=np.uint8) * bits)
    return np.asarray(np.bitwise_or.reduce(shifted, axis=1), np.uint8)


def unpacked(packed: Array, bits: int) -> Array:
    """Small integers from the bytes they are packed in, the lowest bits first, along the last axis."""
    import numpy as np

    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    numbers = (packed[..., None] >> shifts) & (2**bits - 1)
    return np.asarray(numbers).reshape(*packed.shape[:-1], -1)


class OnnxAdapter(Adapter):
    """Opens paths, bytes and ModelProto objects."""

    framework = "onnx"
    holds_interpreter = False
    modules = ("onnx", "onnxruntime")

    def claims(self, target: object) -> bool:
        if isinstance(target, str | PathLike):
            return str(target).lower().endswith((".onnx", ".ort"))
        return isinstance(target, bytes) or type(target).__module__.startswith("onnx.onnx")

    def sharing(self, model: Model) -> Model:
        """The model, told not to keep a core busy while it waits; the answers are the same."""
        if model.options.get("runtime", "onnxruntime") != "onnxruntime":
            return model
        return replace(model, options={"session.intra_op.allow_spinning": "0", **model.options})

    def rest(self, runner: Runner) -> None:
        if isinstance(runner, OnnxRunner):
            runner.rest()

    def require_options(self, model: Model) -> None:
        require_options(model)

    @contextmanager
    def open(self, model: Model) -> Iterator[OnnxRunner]:
        yield OnnxRunner(model)


class OnnxRunner:
    """An open graph and what it declares; `opened` gives what runs it."""

    def __init__(self, model: Model, opened: Callable[[Model, ModelProto], Session] = open_session) -> None:
        proto = describe.read(model.target)
        self.native = proto
        self._model, self._opened = model, opened
        self._awake: Session | None = None
        declared = describe.outputs(proto)
        self._classes = {spec.name: spec.classes for spec in declared}
        self._layout = RowLayout(model, describe.inputs(proto), declared)
        self.signature = self._layout.signature
        self.details: Mapping[str, Any] = {**describe.details(proto), **self._session.settings}
        if isinstance(model.target, str | PathLike) and (files := describe.beside(Path(model.target))):
            self.details = {**self.details, describe.EXTERNAL_DATA: files}
        if (node := throwing_dice(proto)) is not None:
            told = f"it throws dice ({node.op_type} {node.name!r}): what it answers next may be something else"
            self.details = {**self.details, "warnings": [told]}

    @property
    def _session(self) -> Session:
        if self._awake is None:
            self._awake = self._opened(self._model, self.native)
        return self._awake

    def rest(self) -> None:
        """Close the session of a large model; it is opened again when it is asked."""
        if describe.size(self.native) >= RESTING:
            self._awake = None

    def run(self, batch: Batch, *, outputs: frozenset[str] | None = None) -> Tensors:
        # All outputs are always computed: leaving one out would let the optimiser remove nodes that run in production.
        answers = self._ask(batch)
        if self._layout.learn(batch, answers, self._ask):
            self.signature = self._layout.signature
        tensors: dict[str, Array] = {}
        for name, answer in answers.items():
            put_together(tensors, self._decode(name, answer, batch))
        return tensors

    def _ask(self, batch: Batch) -> dict[str, Any]:
        return dict(zip(self._session.outputs, self._session.run(self._layout.feed(batch)), strict=True))

    def _decode(self, name: str, answer: Any, batch: Batch) -> dict[str, Array]:
        import numpy as np

        if isinstance(answer, dict):
            answer = [answer]
        if isinstance(answer, list):
            if answer and isinstance(answer[0], dict):
                return {name: array_of_dicts(answer, self._classes[name])[0]}
            return arrays_of_list(name, answer) if batch.stacked else arrays_of_sequence(name, answer)
        if answer is None:
            if batch.stacked:
                raise ModelError(f"output {name!r} is empty: an optional value that the model left out")
            return arrays_of_sequence(name, None)
        return {name: self._layout.rows_of(name, widened(np.asarray(answer)), batch)}


EXTENSION = OnnxAdapter()
