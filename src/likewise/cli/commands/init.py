"""`likewise init`: a commented configuration, and the CI that uses it."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from urllib.parse import unquote, urlsplit

import click

from likewise.errors import UsageError

CONFIGURATION = """\
# Gates of this project. `likewise check` runs them all; only exit code 0 deploys.
# Paths are relative to this file. A model is a path or module:attribute.

# Pickled models may use scikit-learn, numpy, pandas and the like. Code of your own must be named,
# and is run with --trust-config or LIKEWISE_TRUST_CONFIG=1 only:
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
# max_worse = 20             # by more than this many percent
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
      - run: pip install '{likewise}'
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
    - pip install '{likewise}'
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
PUBLISHED = "likewise[sklearn]"
SOMEWHERE = "git+https://git.example.com/your-organisation/likewise"
"""Stands for the repository that holds likewise, where nothing says which one that is."""
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
    # A link that leads nowhere yet would have the file made there, and one of a folder above anywhere.
    existing = [name for name in files if os.path.lexists(name)]
    if away := next((name for name in files if not _stays(name)), None):
        raise UsageError(f"{away} would be written elsewhere: a link leads there", remedy="Remove the link")
    if existing and not force:
        raise UsageError(f"{existing[0]} exists", remedy="Nothing was written; --force replaces it")
    likewise = _requirement()
    for name, content in files.items():
        try:
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text(content.replace("{likewise}", likewise), encoding="utf-8")
        except OSError as error:
            raise UsageError(
                f"{name} cannot be written: {error.strerror or error}",
                remedy="Run it in a folder that you may write to, and remove what stands in the way of the file",
            ) from error
        click.echo(f"Wrote {name}")
    if SOMEWHERE in likewise and set(files) & {CI["github"][0], CI["gitlab"][0]}:
        click.echo(f"This likewise came from a folder: put the repository that holds it in place of {SOMEWHERE}")
    click.echo("Now fill in the paths of likewise.toml and run: likewise check")


def _stays(name: str) -> bool:
    """Does a file lie in this folder, whatever links there are? Others may have laid them."""
    return os.path.realpath(name) == os.path.join(os.path.realpath("."), *Path(name).parts)


def _requirement() -> str:
    """What pip has to be told elsewhere to install the likewise that is installed here."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        noted = distribution("likewise").read_text("direct_url.json")  # PEP 610; there is none if it came from an index
    except PackageNotFoundError:
        noted = None
    if noted is None:
        return PUBLISHED
    origin = json.loads(noted)
    address, vcs = str(origin.get("url", "")), origin.get("vcs_info")
    if vcs:
        address = f"{vcs['vcs']}+{address}@{vcs['commit_id']}"
    elif address.startswith("file:"):
        address = _repository(unquote(urlsplit(address).path))
    return f"{PUBLISHED} @ {address}"


def _repository(folder: str) -> str:
    """Where others find what a clone holds, in the form that pip takes, without a password."""
    # Imported where used: `--help` shows every command, and starts no faster than their imports.
    import subprocess

    git = shutil.which("git")
    words = [git or "git", "-C", folder, "remote", "get-url", "origin"]
    found = subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip() if git else ""
    if by_ssh := re.fullmatch(r"(?:ssh://)?(\w+@)([\w.-]+)(?::\d+)?[:/](.+)", found):
        return "git+ssh://{}{}/{}".format(*by_ssh.groups())
    over_http = re.fullmatch(r"(https?://)(?:[^/@]*@)?(.+)", found)
    return f"git+{over_http[1]}{over_http[2]}" if over_http else SOMEWHERE


EXTENSION = init
