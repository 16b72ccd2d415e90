"""`likewise init`: a commented configuration, and the CI that uses it."""

from __future__ import annotations

from pathlib import Path

import click

from likewise.errors import UsageError

CONFIGURATION = """\
# Gates of this project. `likewise check` runs them all; only exit code 0 deploys.
# Paths are relative to this file. A model is a path or module:attribute.

# Pickled models may use scikit-learn, numpy, pandas and the like. Code of your own must be named:
# trusted = ["mypackage.*"]

[gates.export]
reference = "artifacts/model.joblib"     # what was trained: right by definition
candidate = "artifacts/model.onnx"       # what is to be deployed
data = "data/test.parquet"               # a file, a glob or a folder
report = "artifacts/parity_report.json"
# preset = "float32"       # float32 (default) | strict | standard | quantized | exact
# abs_tol = 0.01           # largest absolute difference of any value
# mean_tol = 0.005         # largest mean absolute difference
# samples = 1000           # the first rows only; all rows if left out
# drop = ["target"]        # columns that are not features
# id = "customer_id"       # name rows by this column
# max_failure_rate = 0.001 # inconclusive unless the rows can show it
# baseline = "accepted.json" # fails too if a measure is worse than in that run,
# max_worse = 20             # by more than so many percent
#
# [gates.export.limits]
# "probabilities.max_abs_diff" = 0.02
# label_flips = 0

# The same for the quantised file, with tolerances of its own:
# [gates.int8]
# reference = "artifacts/model.joblib"
# candidate = "artifacts/model.int8.onnx"
# data = "data/test.parquet"
# preset = "quantized"
"""

WORKFLOW = """\
# Blocks the deployment unless every gate of likewise.toml passes.
name: likewise
on: [push, pull_request]
jobs:
  parity:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.11"
      - run: pip install 'likewise[sklearn]'
      - run: likewise check --reports likewise-reports
      - uses: actions/upload-artifact@v4
        if: always()
        with:
          name: likewise-reports
          path: likewise-reports/
"""

GITLAB = """\
# Blocks the pipeline unless every gate of likewise.toml passes. Use it with
#   include:
#     - local: likewise.gitlab-ci.yml
# in .gitlab-ci.yml, or rename it to that.
parity:
  image: python:3.11
  stage: test
  before_script:
    - pip install 'likewise[sklearn]'
  script:
    - likewise check --reports likewise-reports
  artifacts:
    when: always
    paths:
      - likewise-reports/
    reports:
      junit: likewise-reports/*.junit.xml
"""

PRE_COMMIT = """\
# Runs every gate of likewise.toml when a model, its data or the configuration changes.
repos:
  - repo: local
    hooks:
      - id: likewise
        name: likewise check
        entry: likewise check --no-explain
        language: system
        pass_filenames: false
        require_serial: true
        files: >-
          (?x)(^|/)(likewise|pyproject)\\.toml$
          |\\.(onnx|ort|data|weights|pb)$
          |\\.(joblib|pkl|pickle|skops)(\\.(gz|bz2|xz|lzma|z|lz4))?$
          |\\.(pt2?|pth|jit|ts|torchscript)$
          |\\.(ubj|xgb|json|model|bin|txt|lgb|lgbm|cbm|xml)$
          |\\.(parquet|pq|arrow|feather|ipc|npy|npz)$
          |\\.(csv|tsv|jsonl|ndjson)(\\.gz)?$
"""

GATES = "likewise.toml"
CI = {
    "github": (".github/workflows/likewise.yml", WORKFLOW),
    "gitlab": ("likewise.gitlab-ci.yml", GITLAB),
    "pre_commit": (".pre-commit-config.yaml", PRE_COMMIT),
}


@click.command(short_help="Write a commented likewise.toml and the CI that uses it.")
@click.option("--github", is_flag=True, help="A workflow for GitHub Actions: .github/workflows/likewise.yml.")
@click.option("--gitlab", is_flag=True, help="A job for GitLab: likewise.gitlab-ci.yml.")
@click.option("--pre-commit", is_flag=True, help="A hook for pre-commit: .pre-commit-config.yaml.")
@click.option("--force", is_flag=True, help="Replace files that exist.")
def init(*, force: bool, **wanted: bool) -> None:
    """Write likewise.toml and .github/workflows/likewise.yml into this folder.

    With --github, --gitlab or --pre-commit only those files are written, and likewise.toml if there is none.
    """
    chosen = [name for name, asked in wanted.items() if asked]
    files = dict(CI[name] for name in chosen or ["github"])
    if not chosen or not Path(GATES).exists():
        files = {GATES: CONFIGURATION, **files}
    existing = [name for name in files if Path(name).exists()]
    if existing and not force:
        raise UsageError(f"{existing[0]} exists", remedy="Nothing was written; --force replaces it")
    for name, content in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(content, encoding="utf-8")
        click.echo(f"Wrote {name}")
    click.echo("Now fill in the paths of likewise.toml and run: likewise check")


EXTENSION = init
