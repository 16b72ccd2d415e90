"""Time from start to the located place: likewise, torch.onnx.verification and polygraphy, in one run.

Three networks with one fault each: an MLP of 41 nodes, a transformer of a thousand, a network of 100 MB. Every tool is
started as a process of its own and gets what it needs: likewise the weights, the file and rows; torch's verification
the module, whose export it makes itself; polygraphy both files, whose values it writes out first.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LIMIT = 420
"""Seconds for one tool on one network."""

NETWORKS = '''
import torch
from torch import nn
from torch.nn import functional as F


class Deep(nn.Module):
    """41 nodes: twenty layers, twenty activations, a head."""

    def __init__(self, layers=20, width=64):
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.head = nn.Linear(width, 4)
        for layer in self.layers:
            nn.init.kaiming_normal_(layer.weight)

    def forward(self, x):
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.head(x)

class Layer(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(w), nn.LayerNorm(w)
        self.query, self.key, self.value, self.out = (nn.Linear(w, w) for _ in range(4))
        self.up, self.down = nn.Linear(w, 2 * w), nn.Linear(2 * w, w)

    def forward(self, x):
        b, t, w = x.shape
        n = self.norm1(x)
        q, k, v = (p(n).reshape(b, t, 4, w // 4).transpose(1, 2) for p in (self.query, self.key, self.value))
        a = torch.softmax(q @ k.transpose(-1, -2) / (w // 4) ** 0.5, -1) @ v
        x = x + self.out(a.transpose(1, 2).reshape(b, t, w))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """A thousand nodes."""

    def __init__(self, layers=35, width=32):
        super().__init__()
        torch.manual_seed(2)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


class Large(nn.Module):
    """100 MB of weights."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.ModuleList(nn.Linear(2048, 2048) for _ in range(6))
        self.head = nn.Linear(2048, 4)

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(2 * layer(x))
        return self.head(x)
'''

VERIFY = """
import sys, time, warnings, logging
warnings.simplefilter("ignore"); logging.disable(logging.CRITICAL)
started = time.perf_counter()
import numpy as np, torch
sys.path.insert(0, sys.argv[1])
import peer_networks
from torch.onnx.verification import verify_onnx_program
net = getattr(peer_networks, sys.argv[2])().eval()
rows = torch.from_numpy(np.load(sys.argv[3])["x"][:4])
program = torch.onnx.export(net, (rows,), dynamo=True, verbose=False, dynamic_shapes=({0: torch.export.Dim("n")},))
import onnx_ir as ir
value = program.model.graph.initializers[sys.argv[4]]
new = value.const_value.numpy().copy()
new.reshape(-1)[: new.size // 2] *= 1.5
value.const_value = ir.tensor(new, name=value.name)
ready = time.perf_counter()
found = verify_onnx_program(program, (rows,), compare_intermediates=True)
# beyond the tolerance that likewise is given
bad = [i for i in found if i.max_abs_diff > 1e-4]
done = time.perf_counter()
print("RESULT", done - started, done - ready, bad[0].name if bad else "nothing")
"""


@dataclass(frozen=True)
class Peer:
    """One network and its fault."""

    title: str
    network: str
    shape: tuple[int, ...]
    weight: str


PEERS = (
    Peer("MLP of 41 nodes", "Deep", (64,), "layers.11.bias"),
    Peer("transformer of 1,000 nodes", "Transformer", (8, 32), "layers.17.up.bias"),
    Peer("network of 100 MB", "Large", (2048,), "layers.3.bias"),
)


def compare(folder: Path, polygraphy: str) -> str:
    """A table of seconds, and what each tool named."""
    folder = folder / "peers"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "peer_networks.py").write_text(NETWORKS)
    (folder / "verify.py").write_text(VERIFY)
    lines = ["| network | nodes | tool | seconds | of it beyond loading | named |", "|---|---|---|---|---|---|"]
    for peer in PEERS:
        made = make(peer, folder)
        for tool, ask in (
            ("likewise check", likewise),
            ("torch.onnx.verification", torch_verification),
            ("polygraphy debug reduce", reduce),
        ):
            started = time.perf_counter()
            try:
                beyond, named = ask(peer, folder, polygraphy)
            except (subprocess.TimeoutExpired, OSError, RuntimeError) as error:
                beyond, named = None, f"{type(error).__name__}: {str(error)[-120:]}"
            seconds = time.perf_counter() - started
            extra = "" if beyond is None else f"{beyond:.1f}"
            lines.append(f"| {peer.title} | {made} | {tool} | {seconds:.1f} | {extra} | {named} |")
            print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines)


def make(peer: Peer, folder: Path) -> int:
    """Weights, sound file, faulty file and rows; the number of nodes."""
    import importlib

    import numpy as np
    import onnx
    import torch
    from onnx import numpy_helper

    base = folder / peer.network
    if not base.with_suffix(".onnx").exists():
        sys.path.insert(0, str(folder))
        net = getattr(importlib.import_module("peer_networks"), peer.network)().eval()
        rows = np.random.default_rng(0).normal(size=(64, *peer.shape)).astype(np.float32)
        np.savez(base.with_suffix(".npz"), x=rows)
        torch.save(net.state_dict(), base.with_suffix(".pt"))
        shapes = ({0: torch.export.Dim("n")},)
        torch.onnx.export(
            net, (torch.from_numpy(rows[:4]),), str(folder / f"{peer.network}.sound.onnx"), dynamo=True, verbose=False,
            input_names=["x"], dynamic_shapes=shapes, external_data=False,
        )  # fmt: skip
        model = onnx.load(str(folder / f"{peer.network}.sound.onnx"))
        held = next(t for t in model.graph.initializer if t.name == peer.weight)
        value = numpy_helper.to_array(held).copy()
        value.reshape(-1)[: value.size // 2] *= 1.5
        held.CopyFrom(numpy_helper.from_array(value, held.name))
        onnx.save(model, str(base.with_suffix(".onnx")))
        from locate_faults.corpus import beyond
        from locate_faults.corpus import run as ask

        sound = ask(folder / f"{peer.network}.sound.onnx", {"x": rows})
        assert beyond(sound, ask(base.with_suffix(".onnx"), {"x": rows})), peer.title
    return len(onnx.load(str(base.with_suffix(".onnx"))).graph.node)


def run(command: list[str], **options: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, **options)
    return done.stdout + done.stderr


def likewise(peer: Peer, folder: Path, _: str) -> tuple[float | None, str]:
    """The whole command, as a user types it."""
    base = folder / peer.network
    report = folder / f"{peer.network}.json"
    factory = f"{folder / 'peer_networks.py'}:{peer.network}"
    run([
        sys.executable, "-m", "likewise", "check", f"{base}.pt", f"{base}.onnx", "--data", f"{base}.npz",
        "--reference-option", f"factory={factory}", "--report", str(report), "--force",
    ])  # fmt: skip
    said = json.loads(report.read_text())
    seconds = said["provenance"]["run"]["seconds"]
    first = said["diagnoses"][0] if said["diagnoses"] else None
    return seconds.get("explaining"), f"{first['cause']}: {first['culprit']}" if first else "nothing"


def torch_verification(peer: Peer, folder: Path, _: str) -> tuple[float | None, str]:
    """The export, the same fault in it, and every intermediate value compared."""
    base = folder / peer.network
    text = run([sys.executable, str(folder / "verify.py"), str(folder), peer.network, f"{base}.npz", peer.weight])
    told = [line.split() for line in text.splitlines() if line.startswith("RESULT")]
    if not told:
        raise RuntimeError(text.strip().splitlines()[-1] if text.strip() else "no output")
    return float(told[0][2]), told[0][3]


def reduce(peer: Peer, folder: Path, polygraphy: str) -> tuple[float | None, str]:
    """All values of the sound file as golden ones, then the faulty file is halved down to what still fails."""
    base = folder / peer.network
    work = folder / f"{peer.network}.polygraphy"
    work.mkdir(exist_ok=True)
    tool = str(Path(polygraphy).absolute()) if os.sep in polygraphy else polygraphy
    shape = ",".join(map(str, (4, *peer.shape)))
    golden = [
        tool, "run", f"{folder / peer.network}.sound.onnx", "--onnxrt", "--onnx-outputs", "mark", "all",
        "--input-shapes", f"x:[{shape}]", "--save-inputs", "inputs.json", "--save-outputs", "golden.json",
    ]  # fmt: skip
    run(golden, cwd=work)
    (work / "reduced.onnx").unlink(missing_ok=True)
    run([tool, "data", "merge", "inputs.json", "golden.json", "-o", "layerwise.json"], cwd=work)
    if not (work / "layerwise.json").exists():
        raise RuntimeError("its golden values could not be written")
    values = ["--load-inputs", "layerwise.json"]
    limits = ["--load-outputs", "golden.json", "--atol", "1e-4", "--rtol", "1e-3"]
    check = ["--check", tool, "run", "polygraphy_debug.onnx", "--onnxrt", *values, *limits]
    shapes = ["--model-input-shapes", f"x:[{shape}]"]
    text = run(
        [tool, "debug", "reduce", f"{base}.onnx", "-o", "reduced.onnx", "--mode=bisect", *shapes, *values, *check],
        cwd=work,
    )
    import onnx

    found = work / "reduced.onnx"
    if not found.exists():
        raise RuntimeError(text.strip().splitlines()[-1] if text.strip() else "no output")
    nodes = [n.name for n in onnx.load(str(found)).graph.node]
    return None, f"{len(nodes)} nodes: {', '.join(nodes[:3])}"
