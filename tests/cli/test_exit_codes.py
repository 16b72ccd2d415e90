"""Exit codes are the gate: 0 deploys, 1 failed, 2 makes no sense, 3 could not be told."""

from __future__ import annotations

import json
import subprocess
import sys
from unittest import mock

import joblib
import numpy as np
import pandas as pd
import pytest

import data_only
from data_only import FLAGS
from likewise.report import save
from planting import command, expect, here, planted, rows


@pytest.fixture(scope="module")
def written(models, tmp_path_factory):
    """Reports of a pass and a failure, as files."""
    folder = tmp_path_factory.mktemp("reports")
    values = np.linspace(1, 2, 60)
    passed = data_only.check(planted(value=values), planted(value=values + 0.05), rows(60), abs_tol=0.1)
    save(passed, folder / "passed.json")
    return folder


# Through the whole chain: command, worker, report. These cost a process or two each.


@pytest.fixture(scope="module")
def faithful(models, tmp_path_factory):
    """A check of a faithful export with nothing switched off."""
    files = (models.joblib.classifier, models.onnx.classifier, "--data", models.keyed)
    return command("check", *files, "--id", "key", folder=tmp_path_factory.mktemp("faithful"))


def test_a_faithful_export_exits_0(faithful):
    faithful.expect(0, "PASS", "300 rows agree", "columns that neither model takes were ignored: 'target'")
    assert faithful.report["passed"] is True
    assert faithful.report["samples"] == 300
    assert faithful.report["worst_rows"][0]["row"].startswith("k")
    assert faithful.stderr == ""


def test_the_report_is_the_same_from_the_command_and_from_python(models, faithful):
    data = pd.read_parquet(models.data)
    live = expect(data_only.check(models.fitted.classifier, models.onnx.classifier, data), "PASS")
    assert faithful.report["max_abs_diff"] == live.max_abs_diff
    assert faithful.report["mean_abs_diff"] == live.mean_abs_diff


def test_a_missing_model_exits_3_and_still_writes_a_report(models, tmp_path):
    ran = command(
        "check", *FLAGS, models.onnx.columns, "nowhere.onnx", "--data", models.data, folder=tmp_path
    ).expect(3, "INCONCLUSIVE", "the candidate cannot be opened", "nowhere.onnx")  # fmt: skip
    assert ran.report["passed"] is False
    assert ran.report["samples"] == 0


def test_an_option_no_adapter_has_exits_2(models, tmp_path):
    command(
        "check", *FLAGS, models.onnx.columns, models.onnx.columns, "--data", models.data,
        "--candidate-option", "optimisation=none", folder=tmp_path,
    ).expect(2, "no option 'optimisation'", "did you mean 'optimization'")  # fmt: skip


# In this process: what becomes of files, options and rows, what is refused, and judging again.


def test_another_model_exits_1_and_names_output_and_rows(models, tmp_path):
    ran = here(
        "check", *FLAGS, models.joblib.classifier, models.onnx.network, "--data", models.keyed, "--id", "key", "--json",
        folder=tmp_path,
    ).expect(1, "probabilities.mismatch_rate")  # fmt: skip
    assert json.loads(ran.stdout) == ran.report
    assert ran.report["outcome"] == "FAIL"
    assert ran.report["worst_rows"][0]["row"].startswith("k")
    difference = models.fitted.classifier.predict_proba(models.table) - models.fitted.network.predict_proba(
        models.table
    )
    assert ran.report["max_abs_diff"] == pytest.approx(np.abs(difference).max(), abs=1e-4)


def test_a_quantised_candidate_exits_1_with_the_hint(models, tmp_path):
    here(
        "check", *FLAGS, models.joblib.network, models.onnx.int8, "--data", models.data, folder=tmp_path
    ).expect(1, "FAIL", "--preset quantized")  # fmt: skip


def test_a_half_written_model_exits_3(models, tmp_path):
    with open(models.onnx.classifier, "rb") as file:
        whole = file.read()
    (tmp_path / "half.onnx").write_bytes(whole[: len(whole) // 2])
    ran = here("check", *FLAGS, models.onnx.columns, "half.onnx", "--data", models.data, folder=tmp_path)
    ran.expect(3, "INCONCLUSIVE", "half.onnx")


def test_no_rows_exit_3(models, tmp_path):
    models.shuffled[:0].to_csv(tmp_path / "header.csv", index=False)
    ran = here(
        "check", *FLAGS, models.onnx.columns, models.onnx.columns, "--data", "header.csv", folder=tmp_path
    ).expect(3, "INCONCLUSIVE", "header.csv", "holds no rows")  # fmt: skip
    assert ran.report["confidence"] is None


def test_a_file_cut_in_half_exits_3(models, tmp_path):
    with open(models.data, "rb") as file:
        whole = file.read()
    (tmp_path / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    here(
        "check", *FLAGS, models.onnx.columns, models.onnx.columns, "--data", "cut.parquet", folder=tmp_path
    ).expect(3, "INCONCLUSIVE", "cut.parquet")  # fmt: skip


def test_too_few_rows_exit_3_and_say_how_many_it_takes(models, tmp_path):
    here(
        "check", *FLAGS, models.onnx.columns, models.onnx.columns, "--data", models.data,
        "--samples", "301", "--max-failure-rate", "0.001", folder=tmp_path,
    ).expect(3, "301 rows were expected and 300 were compared", "It takes 2,995 rows")  # fmt: skip


def test_a_provider_that_is_not_there_exits_3(models, tmp_path):
    here(
        "check", *FLAGS, models.onnx.columns, models.onnx.columns, "--data", models.data,
        "--candidate-option", "providers=CUDA", folder=tmp_path,
    ).expect(3, "CUDAExecutionProvider")  # fmt: skip


def test_a_limit_that_nothing_was_measured_against_exits_3(models, tmp_path):
    here(
        "check", *FLAGS, models.onnx.columns, models.onnx.columns, "--data", models.data,
        "--limit", "probabilites.max_abs_diff=0.1", folder=tmp_path,
    ).expect(3, "probabilites.max_abs_diff", "did you mean 'probabilities'")  # fmt: skip


def test_code_in_a_pickle_is_refused_and_not_run(models, tmp_path):
    class Booby:
        def __reduce__(self):
            return (open, (str(tmp_path / "trap"), "w"))

    joblib.dump(Booby(), tmp_path / "trapped.joblib")
    here(
        "check", *FLAGS, "trapped.joblib", models.onnx.classifier, "--data", models.data, folder=tmp_path
    ).expect(3, "INCONCLUSIVE", "trapped.joblib", "open")  # fmt: skip
    assert not (tmp_path / "trap").exists()


def test_recorded_answers_work_without_the_model_and_only_for_their_data(models, tmp_path):
    here("record", models.joblib.classifier, "--data", models.data, "-o", "golden.parquet", folder=tmp_path).expect(
        0, "300 rows", "golden.parquet"
    )
    models.shuffled[::-1].to_parquet(tmp_path / "other.parquet", index=False)
    here("check", *FLAGS, "golden.parquet", models.onnx.classifier, "--data", "other.parquet", folder=tmp_path).expect(
        3, "recorded for other data", "other.parquet"
    )


def test_the_worst_of_several_gates_is_the_exit_code(models, tmp_path):
    (tmp_path / "likewise.toml").write_text(
        f"""
reference = "{models.onnx.columns}"
data = "{models.data}"
explain = false
allow_same = true
edge = "off"
[gates.good]
candidate = "{models.onnx.columns}"
[gates.bad]
candidate = "{models.onnx.network}"
[gates.gone]
candidate = "gone.onnx"
"""
    )
    ran = here("check", "--gate", "good", "--gate", "bad", folder=tmp_path).expect(1, "PASS", "FAIL", "good:", "bad:")
    assert json.loads((tmp_path / "parity_report.good.json").read_text())["passed"] is True
    assert json.loads((tmp_path / "parity_report.bad.json").read_text())["passed"] is False
    assert "gone" not in ran.stdout
    here("check", "--gate", "gone", folder=tmp_path).expect(3, "gone.onnx")


def test_a_stale_pass_is_not_left_behind(models, tmp_path):
    stale = tmp_path / "parity_report.json"
    stale.write_text('{"passed": true, "samples": 1}')
    ran = here("check", *FLAGS, models.onnx.columns, "gone.onnx", "--data", models.data, folder=tmp_path)
    assert ran.expect(3, "is kept as parity_report.before.json").report["passed"] is False
    assert json.loads((tmp_path / "parity_report.before.json").read_text()) == {"passed": True, "samples": 1}


@pytest.mark.parametrize("text", ["notes of mine", '{"passed": 10, "failed": 0}', "[true]"])
def test_what_is_no_verdict_stays_where_a_report_would_go(models, tmp_path, text):
    (tmp_path / "parity_report.json").write_text(text)
    words = ["check", *FLAGS, models.onnx.columns, "gone.onnx", "--data", models.data]
    with mock.patch("planting._written", return_value={}):
        ran = here(*words, folder=tmp_path)
    assert (ran.returncode, "the verdict is shown and not kept" in ran.stderr) == (3, True)
    assert (tmp_path / "parity_report.json").read_text() == text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ("neither arguments nor a likewise.toml",)),
        (("a.joblib",), ("the candidate is missing", "one gate of a likewise.toml: --gate a.joblib")),
        (("a.joblib", "b.onnx"), ("--data",)),
        (("a.joblib", "b.onnx", "--data", "d.csv", "--preset", "standart"), ("'standart'", "standard")),
        (("a.joblib", "b.onnx", "--data", "d.csv", "--abs-tol", "nan"), ("--abs-tol is nan",)),
        (("a.joblib", "b.onnx", "--data", "d.csv", "--abs-tol", "-1"), ("--abs-tol is -1",)),
        (("a.joblib", "b.onnx", "--data", "d.csv", "--rel-tol", "inf"), ("--rel-tol is inf",)),
        (("a.joblib", "b.onnx", "--data", "d.csv", "--limit", "max_dif=1"), ("'max_dif'", "Measures:")),
        (("a.joblib", "b.onnx", "--data", "d.csv", "--limit", "max_abs_diff"), ("NAME=VALUE",)),
        (("a.joblib", "b.onnx", "--data", "d.csv", "--limit", "max_abs_diff=few"), ("few",)),
        (("a.joblib", "b.onnx", "--data", "d.csv", "--samples", "0"), ("--samples is 0",)),
        (("a.joblib", "b.onnx", "--data", "d.csv", "--batch-sizes", "1,two"), ("1,two",)),
        (("a.joblib", "b.onnx", "--data", "d.csv", "--confidence", "95"), ("--confidence is 95",)),
        (("a.joblib", "b.onnx", "--data", "d.csv", "--tolerance", "1"), ("--tolerance",)),
        (("--config", "nowhere.toml"), ("nowhere.toml",)),
    ],
    ids=lambda value: " ".join(value[2:]) or "few arguments" if value and value[0] in ("a.joblib", "--config") else "",
)
def test_a_command_that_makes_no_sense_exits_2_and_writes_nothing(main, tmp_path, arguments, words):
    main("check", *arguments).expect(2, *words)
    assert list(tmp_path.iterdir()) == []


def test_a_fleet_in_no_folder_exits_2_and_takes_it_for_no_configuration(main):
    main("fleet", "nowhere").expect(2, "neither a folder nor a file nowhere")


def test_an_unknown_command_exits_2_and_a_near_one_is_offered(main):
    main("chekc").expect(2, "'chekc'", "did you mean 'check'")


def test_a_configuration_with_an_unknown_setting_exits_2(main, tmp_path):
    (tmp_path / "likewise.toml").write_text('[gates.one]\nreference="a"\ncandidate="b"\ndata="c"\nabs_tolerance=1\n')
    main("check").expect(2, "likewise.toml", "'one'", "'abs_tolerance'", "abs_tol")
    (tmp_path / "likewise.toml").write_text('[gates.one]\nreference="a"\ncandidate="b"\ndata="c"\nabs_tol="few"\n')
    main("check").expect(2, "likewise.toml", "abs_tol", "'few'")
    (tmp_path / "likewise.toml").write_text("[gates.one\n")
    main("check").expect(2, "likewise.toml", "TOML")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 0, ("PASS",)),
        (("--abs-tol", "0.01"), 1, ("'value' differs by up to 0.05, and 0.01 is allowed",)),
        (("--abs-tol", "0", "--rel-tol", "0.03"), 3, ("cannot be decided", "Run the check again")),
        (("--preset", "quantized"), 1, ("mean difference in 'value' is 0.05, and 0.02 is allowed",)),
        (("--limit", "label_flips=0"), 3, ("label_flips",)),
        (("--abs-tol", "nan"), 2, ("--abs-tol is nan",)),
    ],
)
def test_judging_again_exits_by_the_new_verdict(main, written, arguments, code, words):
    before = (written / "passed.json").read_bytes()
    main("judge", written / "passed.json", *arguments).expect(code, *words)
    assert (written / "passed.json").read_bytes() == before


@pytest.mark.parametrize("content", ["", "{", "{}", '{"schema_version": 1}', "[1, 2]"])
def test_judging_what_is_no_report_exits_3(main, tmp_path, content):
    (tmp_path / "report.json").write_text(content)
    main("judge", tmp_path / "report.json").expect(3, "report.json")


def test_judging_a_file_that_is_not_there_exits_3(main, tmp_path):
    main("judge", tmp_path / "gone.json").expect(3, "gone.json", "No such file")


def test_a_traceback_is_shown_to_those_who_ask_for_it(main, tmp_path):
    from likewise.errors import DataError

    with pytest.raises(DataError, match=r"gone\.json"):
        main("judge", tmp_path / "gone.json", "--debug")


def test_a_report_tampered_into_a_pass_is_judged_by_its_facts(main, written, tmp_path):
    report = json.loads((written / "passed.json").read_text())
    report["outputs"][0]["measures"]["max_abs_diff"] = 0.5
    (tmp_path / "tampered.json").write_text(json.dumps(report))
    main("judge", tmp_path / "tampered.json").expect(1, "largest difference in 'value' is 0.5, and 0.1 is allowed")


@pytest.mark.parametrize("before", ["", "atexit.register(print, 'before');"], ids=["alone", "beside a tool"])
def test_a_command_ends_after_all_that_was_to_be_done_at_its_end(before):
    code = (
        f"import atexit, sys, threading;{before} sys.argv = ['likewise', '--version'];"
        "threading.Timer(0.01, print, ['thread']).start();"
        "import likewise.cli; made = likewise.cli.main;"
        "likewise.cli.main = lambda: (atexit.register(print, 'after'), made());"
        "from likewise.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert {*done.stdout.split()} >= {"likewise,", "thread", "after", *(["before"] if before else [])}


def test_a_script_that_goes_on_after_a_command_has_an_exit_code_of_its_own():
    code = "from likewise.__main__ import main\ntry: main()\nexcept SystemExit as end: print(end.code)"
    done = subprocess.run([sys.executable, "-c", code, "nonsense"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["2"])
