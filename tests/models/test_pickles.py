"""A model file is read without running code from it, and every ordinary model can be read."""

from __future__ import annotations

import contextlib
import copy
import copyreg
import os
import pickle
import struct
import sys
import warnings

import joblib
import numpy as np
import pytest
import scipy.sparse
import scipy.spatial.distance
import scipy.special
import scipy.stats
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import RandomizedSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from likewise.errors import ModelError, UntrustedModelError
from likewise.models.pickles import load, refuse_what_no_model_holds

# ---------------------------------------------------------------- what must never run


@pytest.fixture
def canary(tmp_path):
    """A command that leaves a file behind if it is ever run."""
    victim = tmp_path / "executed"
    yield f"touch {victim}"
    assert not victim.exists(), "code from the file was executed"


class Calls:
    """Pickles as a call of a function."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def text(value):
    encoded = value.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def stack_global(module, name):
    return text(module) + text(name) + b"\x93"


def refused(path, **options):
    with pytest.raises(UntrustedModelError) as caught:
        load(path, **options)
    return str(caught.value)


def write(tmp_path, body, name="model.pkl"):
    path = tmp_path / name
    path.write_bytes(b"\x80\x04" + body + b".")
    return path


SYSTEM = f"{os.system.__module__}.system"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_command_is_not_run(tmp_path, canary, protocol):
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps(Calls(os.system, canary), protocol=protocol))
    assert SYSTEM in refused(path)


@pytest.mark.parametrize("compress", [0, 3, ("gzip", 3), ("bz2", 3), ("xz", 3), ("lzma", 3)])
def test_a_command_in_a_joblib_file_is_not_run(tmp_path, canary, compress):
    joblib.dump({"w": np.arange(9.0), "x": Calls(os.system, canary)}, tmp_path / "model.joblib", compress=compress)
    assert SYSTEM in refused(tmp_path / "model.joblib")


@pytest.mark.parametrize("compress", [0, 3])
def test_a_command_inside_an_array_of_objects_is_not_run(tmp_path, canary, compress):
    array = np.array([1, Calls(os.system, canary)], dtype=object)
    joblib.dump(make_pipeline(FunctionTransformer(kw_args={"x": array})), tmp_path / "m.joblib", compress=compress)
    assert SYSTEM in refused(tmp_path / "m.joblib")


def test_a_dangerous_function_is_refused_even_as_a_value(tmp_path):
    joblib.dump(FunctionTransformer(os.system), tmp_path / "m.joblib")
    assert SYSTEM in refused(tmp_path / "m.joblib")


@pytest.mark.parametrize("name", ["eval", "exec", "__import__", "open", "compile", "type", "breakpoint"])
def test_builtins_that_run_text_are_refused(tmp_path, canary, name):
    code = f"__import__('os').system({canary!r})"
    path = write(tmp_path, stack_global("builtins", name) + text(code) + b"\x85R")
    assert f"builtins.{name}" in refused(path)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("subprocess", "Popen"),
        ("numpy", "load"),
        ("numpy", "memmap"),
        ("numpy", "fromfile"),
        ("numpy.f2py", "compile"),
        ("numpy.testing._private.utils", "runstring"),
        ("pandas", "read_pickle"),
        ("pandas", "eval"),
        ("pandas", "HDFStore"),
        ("pandas.core.frame", "DataFrame.eval"),
        ("pandas.io.pickle", "read_pickle"),
        ("pandas._libs.parsers", "TextReader"),
        ("numpy", "ndarray"),
        ("joblib", "load"),
        ("joblib.memory", "Memory"),
        ("joblib.numpy_pickle", "NDArrayWrapper"),
        ("joblib.numpy_pickle_compat", "ZNDArrayWrapper"),
        ("scipy.io", "loadmat"),
        ("scipy.optimize._nonlin", "_nonlin_wrapper"),
        ("scipy.stats._distn_infrastructure", "rv_generic._attach_argparser_methods"),
        ("sklearn.datasets", "load_files"),
        ("sklearn.datasets._base", "load_files"),
        ("sklearn.utils._testing", "assert_run_python_script_without_output"),
        ("sklearn.utils.parallel", "Parallel"),
        ("sklearn.tree._export", "export_graphviz"),
        ("sklearn.base", "clone"),
        ("sklearn.callback._scoring_monitor", "ScoringMonitor"),
        ("operator", "attrgetter"),
        ("operator", "methodcaller"),
        ("types", "FunctionType"),
        ("importlib", "import_module"),
        ("runpy", "run_path"),
    ],
)
def test_dangerous_names_are_refused_and_named(tmp_path, canary, module, name):
    path = write(tmp_path, stack_global(module, name) + text(canary) + b"\x85R")
    assert name.rpartition(".")[2] in refused(path)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("sklearn.base", "warnings.sys.modules"),
        ("sklearn.utils.validation", "np.load"),
        ("sklearn.utils.validation", "np"),
        ("sklearn.pipeline", "Pipeline.predict.__globals__"),
        ("sklearn.pipeline", "Pipeline.__init__"),
        ("sklearn.feature_selection._univariate_selection", "f_classif.__globals__"),
        ("numpy", "os.system"),
        ("numpy", "f2py"),
        ("sklearn.ensemble._forest", "threading.Thread"),
        ("sklearn.utils.validation", "joblib.load"),
    ],
)
def test_a_way_through_an_allowed_module_leads_nowhere(tmp_path, canary, module, name):
    path = write(tmp_path, stack_global(module, name) + text(canary) + b"\x85R")
    with pytest.raises(ModelError):
        load(path)


def test_an_allowed_value_must_not_be_called(tmp_path):
    path = write(tmp_path, stack_global("sklearn.metrics._classification", "accuracy_score") + b")R")
    assert "calling sklearn.metrics._classification.accuracy_score" in refused(path)


def test_an_object_the_file_made_must_not_be_called(tmp_path):
    partial = stack_global("functools", "partial") + stack_global("builtins", "len") + b"\x85R"
    assert "calling functools.partial" in refused(write(tmp_path, partial + b")R"))


@pytest.mark.parametrize("old", [b"i", b"o"])
def test_old_ways_to_call_are_guarded_too(tmp_path, canary, old):
    body = {b"i": text(canary) + b"ios\nsystem\n", b"o": b"cos\nsystem\n" + text(canary) + b"o"}
    assert "os.system" in refused(write(tmp_path, b"(" + body[old]))


def test_a_function_must_not_be_given_another_body(tmp_path):
    function = stack_global("sklearn.feature_selection._univariate_selection", "f_classif")
    path = write(tmp_path, function + b"N}" + text("__defaults__") + b")s\x86b")
    assert "changing sklearn.feature_selection._univariate_selection.f_classif" in refused(path)


def test_a_class_must_not_be_changed(tmp_path):
    body = (
        stack_global("sklearn.utils._bunch", "Bunch")
        + b"N}"
        + text("get")
        + stack_global("builtins", "len")
        + b"s\x86b"
    )
    assert "changing sklearn.utils._bunch.Bunch" in refused(write(tmp_path, body))


@pytest.mark.parametrize("hook", ["__setstate__", "__class__", "__reduce_ex__"])
def test_an_object_must_not_be_given_hooks(tmp_path, hook):
    made = stack_global("sklearn.linear_model._ridge", "Ridge") + b")\x81"
    path = write(tmp_path, made + b"}" + text(hook) + stack_global("builtins", "len") + b"sb")
    assert "changing sklearn.linear_model._ridge.Ridge" in refused(path)


def test_appending_does_not_call_an_attribute_of_the_file(tmp_path):
    made = stack_global("numpy", "vectorize") + b")\x81"
    shadowed = b"}" + text("append") + stack_global("builtins", "len") + b"sb"
    assert "changing" in refused(write(tmp_path, made + shadowed + text("x") + b"a"))
    assert "changing" in refused(write(tmp_path, made + b"(" + text("x") + b"\x90"))
    assert "changing" in refused(write(tmp_path, made + text("x") + b"Ns"))


def test_attributes_are_not_reached_by_name(tmp_path, canary):
    chain = stack_global("builtins", "getattr") + stack_global("builtins", "str") + text("__subclasses__") + b"\x86R"
    assert "builtins.str.__subclasses__" in refused(write(tmp_path, chain + b")R"))
    (tmp_path / "bound.pkl").write_bytes(pickle.dumps(FunctionTransformer(Ridge().fit)))
    assert "Ridge.fit" in refused(tmp_path / "bound.pkl")


def test_registered_extension_codes_are_no_way_round(tmp_path, canary):
    copyreg.add_extension("os", "system", 0xF0)
    try:
        path = write(tmp_path, b"\x82\xf0" + text(canary) + b"\x85R")
        assert "os.system" in refused(path)
        copyreg._extension_cache[0xF0] = os.system
        assert "os.system" in refused(path)
    finally:
        copyreg.remove_extension("os", "system", 0xF0)
    with pytest.raises(ModelError, match="extension code"):
        load(write(tmp_path, b"\x82\x77"))


def test_persistent_ids_are_not_followed(tmp_path):
    with pytest.raises(ModelError, match="persistent"):
        load(write(tmp_path, b"Pos.system\n"))


def test_a_distribution_must_not_bring_its_own_code(tmp_path, canary):
    evil = copy.copy(scipy.stats.norm)
    evil._parse_arg_template = f"import os; os.system({canary!r})"
    joblib.dump(RandomizedSearchCV(Ridge(), {"alpha": evil}), tmp_path / "m.pkl")
    assert "changing scipy.stats._continuous_distns.norm_gen" in refused(tmp_path / "m.pkl")


def test_numpy_does_not_call_a_constructor_of_the_file(tmp_path):
    path = write(
        tmp_path,
        stack_global("numpy.random._pickle", "__randomstate_ctor")
        + text("4")
        + stack_global("builtins", "int")
        + b"\x86R",
    )
    assert "calling numpy.random._pickle.__randomstate_ctor" in refused(path)


def test_codecs_are_not_chosen_by_the_file(tmp_path):
    path = write(tmp_path, stack_global("_codecs", "encode") + text("x") + text("rot13") + b"\x86R")
    assert "calling _codecs.encode" in refused(path)


def test_numpy_is_not_led_beyond_its_memory(tmp_path):
    """Both would crash the interpreter: pointers where there are numbers, and a list shorter than its array."""
    dtype = pickle.dumps(np.dtype("f8"), protocol=2)
    flags = dtype.rindex(b"K\x00t")
    (tmp_path / "dtype.pkl").write_bytes(dtype[:flags] + b"K\x3ft" + dtype[flags + 3 :])
    assert "changing numpy" in refused(tmp_path / "dtype.pkl")
    array = pickle.dumps(np.array(["a", "b"], dtype=object), protocol=2)
    shape = array.index(b"K\x02\x85")
    (tmp_path / "array.pkl").write_bytes(array[:shape] + b"K\x7f" + array[shape + 2 :])
    assert "changing numpy.ndarray" in refused(tmp_path / "array.pkl")


def test_an_interpolation_calls_only_what_is_its_own(tmp_path):
    model = IsotonicRegression().fit([1, 2, 3], [1, 2, 3])
    model.f_._call = np.save
    with pytest.raises(UntrustedModelError, match=r"f_\._call is the function numpy\.save"):
        refuse_what_no_model_holds("model.joblib", model)


def test_importing_an_unknown_module_is_not_tried(tmp_path, monkeypatch):
    (tmp_path / "trap.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\nclass Thing: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "trap.Thing" in refused(write(tmp_path, stack_global("trap", "Thing") + b")\x81"))
    assert "trap" not in sys.modules
    assert not (tmp_path / "executed").exists()


def test_everything_that_was_refused_is_listed_with_the_way_out(tmp_path):
    body = b"(" + b"".join(stack_global("mypackage.steps", name) + b")\x81" for name in ("Clip", "Also")) + b"l"
    message = refused(write(tmp_path, body))
    assert "mypackage.steps.Also, mypackage.steps.Clip" in message
    assert "--trust 'mypackage.*'" in message
    assert 'trusted=["mypackage.*"]' in message
    assert "runs the file's code" in message


def test_a_command_is_not_recommended_for_trust(tmp_path, canary):
    joblib.dump(Calls(os.system, canary), tmp_path / "m.joblib")
    message = refused(tmp_path / "m.joblib")
    assert "no business" in message
    assert "--trust 'posix" not in message


# ---------------------------------------------------------------- trust


@pytest.fixture
def mypackage(tmp_path, monkeypatch):
    folder = tmp_path / "mylikewisepackage"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "steps.py").write_text(
        "from os import system\nimport os\n"
        "from sklearn.base import BaseEstimator, TransformerMixin\n"
        "class Clip(TransformerMixin, BaseEstimator):\n"
        "    def fit(self, X, y=None): return self\n"
        "    def transform(self, X): return X.clip(0, 1)\n"
        "def double(x): return 2 * x\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import mylikewisepackage.steps as steps

    yield steps
    for name in [name for name in sys.modules if name.startswith("mylikewisepackage")]:
        del sys.modules[name]


def test_trusted_code_is_loaded(tmp_path, mypackage):
    model = make_pipeline(mypackage.Clip(), FunctionTransformer(mypackage.double), StandardScaler())
    X = np.linspace(-2, 2, 10).reshape(-1, 1)
    joblib.dump(model.fit(X), tmp_path / "m.joblib")
    assert "mylikewisepackage.steps.Clip" in refused(tmp_path / "m.joblib")
    assert "mylikewisepackage.steps.double" in refused(tmp_path / "m.joblib", trusted=["*.Clip"])
    loaded = load(tmp_path / "m.joblib", trusted=["mylikewisepackage.*"])
    assert np.array_equal(loaded.transform(X), model.transform(X))


def test_trust_in_a_module_is_not_trust_in_what_it_imports(tmp_path, canary, mypackage):
    for name in ("system", "os.system", "os"):
        path = write(tmp_path, stack_global("mylikewisepackage.steps", name) + text(canary) + b"\x85R")
        with pytest.raises(ModelError):
            load(path, trusted=["mylikewisepackage.*"])


def test_trusting_everything_runs_the_file(tmp_path):
    path = tmp_path / "m.pkl"
    path.write_bytes(pickle.dumps(Calls(os.path.join, "a", "b")))
    assert load(path, trusted=["*"]) == os.path.join("a", "b")


def test_a_trusted_class_of_a_notebook_cannot_be_found(tmp_path):
    path = write(tmp_path, stack_global("__main__", "LikewiseNotebookClip") + b")\x81")
    with pytest.raises(ModelError, match="defined in a script or notebook") as caught:
        load(path, trusted=["__main__.*"])
    assert "Move it into a module" in str(caught.value)
    assert "move it into a module" in refused(path)


def test_a_trusted_module_that_is_not_there_is_named(tmp_path):
    path = write(tmp_path, stack_global("likewise_absent.steps", "Clip") + b")\x81")
    with pytest.raises(ModelError, match=r"likewise_absent\.steps, which cannot be imported"):
        load(path, trusted=["likewise_absent.*"])


def test_a_name_of_another_version_is_explained(tmp_path):
    path = write(tmp_path, stack_global("sklearn.linear_model.logistic", "LogisticRegression") + b")\x81")
    with pytest.raises(ModelError, match="installed sklearn does not have"):
        load(path)


def test_another_version_of_scikit_learn_is_a_warning(tmp_path, monkeypatch):
    from sklearn.exceptions import InconsistentVersionWarning

    model = Ridge().fit([[0.0], [1.0]], [0, 1])
    state = {**model.__getstate__(), "_sklearn_version": "99.0"}
    monkeypatch.setattr(Ridge, "__getstate__", lambda self: state)
    joblib.dump(model, tmp_path / "m.joblib")
    with pytest.warns(InconsistentVersionWarning, match="99.0"):
        assert isinstance(load(tmp_path / "m.joblib"), Ridge)


# ---------------------------------------------------------------- files that are no models


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "it is empty"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 40, "PNG image"),
        (b"PK\x03\x04" + b"\0" * 40, "zip archive"),
        (b'{"a": 1}', "JSON"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"\x80\x04\xff\xff\xff", "damaged or not a pickle"),
        (b"hello world", "damaged or not a pickle"),
        (b"x\x9chello world", "damaged or not a pickle"),
        (b"BZh91 nonsense", "damaged or not a pickle"),
        (b"\x1f\x8b nonsense", "damaged or not a pickle"),
    ],
)
def test_a_file_that_is_no_model_says_what_it_is(tmp_path, content, expected):
    path = tmp_path / "model.joblib"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=expected) as caught:
        load(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize("compress", [0, 3, ("gzip", 3), ("bz2", 3), ("xz", 3)])
@pytest.mark.parametrize("part", [0.3, 0.6, 0.95])
def test_a_truncated_file_is_an_error(tmp_path, compress, part):
    joblib.dump({"w": np.random.default_rng(0).normal(size=4000), "end": "x"}, tmp_path / "whole", compress=compress)
    whole = (tmp_path / "whole").read_bytes()
    (tmp_path / "cut").write_bytes(whole[: int(len(whole) * part)])
    with pytest.raises(ModelError, match="cannot be loaded"):
        load(tmp_path / "cut")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ModelError, match="there is no file"):
        load(tmp_path / "nothing.pkl")


def test_damage_anywhere_is_an_error_and_nothing_worse(tmp_path):
    random = np.random.default_rng(0)
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit([[0.0], [1.0]], ["a", "b"])
    whole = [pickle.dumps(model, protocol=protocol) for protocol in (0, 2, 5)]
    joblib.dump(model, tmp_path / "model")
    whole.append((tmp_path / "model").read_bytes())
    for trial in range(400):
        damaged = bytearray(whole[trial % len(whole)])
        for position in random.integers(0, len(damaged), 3):
            damaged[position] = random.integers(0, 256)
        (tmp_path / "model").write_bytes(damaged)
        with warnings.catch_warnings(), contextlib.suppress(ModelError):
            warnings.simplefilter("ignore")  # a damaged version number is none
            load(tmp_path / "model")


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x04}(\x8c\x01aK\x01\x8c\x01bu.",  # SETITEMS
        b"\x80\x04(\x8c\x01aK\x01\x8c\x01bd.",  # DICT
    ],
)
def test_a_key_without_a_value_is_refused_as_by_pickle_itself(content, tmp_path):
    with pytest.raises(pickle.UnpicklingError, match="odd number of items"):
        pickle.loads(content)
    path = tmp_path / "model.pkl"
    path.write_bytes(content)
    with pytest.raises(ModelError, match="a key without a value"):
        load(path)
    path.write_bytes(content.replace(b"\x8c\x01b", b"\x8c\x01bK\x02"))
    assert load(path) == {"a": 1, "b": 2}


def test_a_part_that_says_it_is_longer_than_it_is_ends_early(tmp_path):
    content = bytearray(pickle.dumps([1.5] * 100, 4))
    assert content[2:3] == pickle.FRAME
    content[3] += 2
    (tmp_path / "model.pkl").write_bytes(content)
    with pytest.raises(pickle.UnpicklingError):
        pickle.loads(bytes(content))
    with pytest.raises(ModelError, match="ends early"):
        load(tmp_path / "model.pkl")
