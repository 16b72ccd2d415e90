"""The whole corpus as folders, each made once; a fault that does not show is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx

from locate_faults import bases, control, dense, reduced, sequence, tabular, vision
from locate_faults.corpus import WORDS, Built, Fault, Truth, beyond, nodes_of, run, truth_of

NETWORKS = {"dense": dense.FAULTS, "vision": vision.FAULTS, "sequence": sequence.FAULTS}
Maker = Callable[[Path], Built]


def makers(folder: Path) -> Iterator[tuple[str, Maker]]:
    """Name and maker of every pair, clean ones last in each family."""
    store = bases.Store(folder)
    for family, faults in NETWORKS.items():
        for fault in faults:
            yield fault.name, lambda place, f=fault, y=family: plant(f, y, store, place)
    for name in bases.NETS:
        exporter = "legacy" if len(name) % 2 and name != "fusion" else "dynamo"
        yield f"clean-{name}", lambda place, n=name, e=exporter: clean(n, e, store, place)
    for room in (control, reduced, tabular):
        yield from room.makers(store)


def corpus(folder: Path, only: str = "") -> Iterator[Built]:
    """Every pair, built where it is not there yet."""
    for name, make in makers(folder):
        if only not in name:
            continue
        place = folder / "pairs" / name
        if not (place / "case.json").exists():
            place.mkdir(parents=True, exist_ok=True)
            make(place).save(place)
        yield Built.load(place)


def plant(fault: Fault, family: str, store: bases.Store, place: Path) -> Built:
    """A fault in a network, with its truth."""
    name, exporter = fault.base.split("/")
    sound = store.sound(fault.base)
    path = place / "candidate.onnx"
    if fault.module is not None:
        net = copy.deepcopy(bases.module(name))
        fault.module(net)
        model = bases.export(net, bases.data(name), exporter, path, training=fault.training)
        truth = Truth()
        for part in fault.paths:
            here = nodes_of(model, part)
            truth = Truth(truth.nodes | here.nodes, truth.tensors | here.tensors, truth.paths | here.paths)
    else:
        assert fault.edit is not None
        model = onnx.load(str(sound))
        del model.graph.value_info[:]
        fault.edit(model)
        onnx.save(model, str(path))
        truth = truth_of(onnx.load(str(sound)), model)
    if not truth.nodes | truth.tensors:
        raise AssertionError(f"{fault.name}: nothing differs")
    rows = bases.data(name)
    expected = bases.answers(bases.module(name), rows)
    failing = beyond(expected, run(path, rows), fault.options.get("abs_tol", 1e-4), fault.options.get("rel_tol", 1e-3))
    if not failing:
        raise AssertionError(f"{fault.name}: no row is beyond the tolerance")
    reference = str(store.weights(name)) if fault.against == "torch" else str(sound)
    options = dict(fault.options)
    if fault.against == "torch":
        options["reference_options"] = {"factory": f"{bases.FACTORY}:{bases.NETS[name][0].__name__}"}
    causes = (*WORDS[fault.word], *fault.also)
    tells = tuple(sorted(truth.paths | set(fault.paths)))
    return Built(
        fault.name, family, reference, str(path), str(store.rows(name)), fault.word, causes,
        tuple(sorted(truth.nodes)), tuple(sorted(truth.tensors)), tells, options,
        f"{fault.word}, {name} by {exporter}, reference {fault.against}",
    )  # fmt: skip


def clean(name: str, exporter: str, store: bases.Store, place: Path) -> Built:
    """A sound export against its module."""
    path = place / "candidate.onnx"
    path.write_bytes(store.sound(f"{name}/{exporter}").read_bytes())
    rows = bases.data(name)
    assert not beyond(bases.answers(bases.module(name), rows), run(path, rows))
    options = {"reference_options": {"factory": f"{bases.FACTORY}:{bases.NETS[name][0].__name__}"}}
    return Built(f"clean-{name}", "clean", str(store.weights(name)), str(path), str(store.rows(name)), options=options)
