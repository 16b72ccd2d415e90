# Everything runs in .venv, which is made from constraints.txt when it is missing or out of date.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test docs lint format bench atlas conformance determinism endurance explain-score exports fuzz locate mutants oracle pipe ray-kills remedies screens newcomer servers versions clean

demo: $(READY)
	rm -rf .demo
	$(BIN)/likewise demo .demo/loans
	cp -r examples/tabular .demo/flights
	cd .demo/flights && for step in "-m src.train" deployment/export_onnx.py deployment/quantize_onnx.py \
		deployment/parity_check.py "deployment/cpu_inference.py --backend onnx"; do \
		echo "\n$$ python $$step"; ../../$(BIN)/python $$step || exit 1; done

test: $(READY)
	$(BIN)/python -m compileall -q src # once, where the environment keeps Python from doing so itself
	$(BIN)/python -m pytest -q -n 3 --dist worksteal # one more than cores: some tests wait for processes that they started

# Runs every command and every example of README.md and docs/, and writes what they print today into the pages.
docs: $(READY)
	LIKEWISE_DOCS=write $(BIN)/python -m pytest -q tests/docs/test_pages.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# A hand-written loop, Polygraphy and likewise in turns, also on networks of real size, beside what is aimed at; about 20 minutes
# on an idle machine. ONLY=mlp for some; WRITE=1 writes docs/benchmarks.md. `benchmarks/cost.py --growth` has more rows and columns.
bench: $(READY)
	$(BIN)/python -m compileall -q src # as for tests: else every start would compile anew
	$(BIN)/python benchmarks/cost.py $(if $(ONLY),--only "$(ONLY)") $(if $(WRITE),--write)

# A million rows with the reference in process and in another Python, in turns
pipe: $(READY)
	$(BIN)/python benchmarks/pipe.py

# One command, one report: 20 runs of each gate, half of them under load. RUNS=4 for fewer
determinism: $(READY)
	$(BIN)/python benchmarks/determinism.py $(if $(RUNS),--runs $(RUNS))

# 300 kills, 100 commands at once, 10,000 checks in one process. PART=kills for one of them, COUNT=20 for fewer
endurance: $(READY)
	for part in $(or $(PART),kills crowd life); do $(BIN)/python benchmarks/endurance.py $$part $(if $(COUNT),--count $(COUNT)) || exit 1; done

# Actors, their processes and whole nodes of a Ray cluster killed while they compare: the comparison is that of one process.
# COUNT=3 for fewer, SEED=1 for others
ray-kills: $(READY)
	$(BIN)/python benchmarks/ray_kills.py $(if $(COUNT),--count $(COUNT)) $(if $(SEED),--seed $(SEED))

# Every case of ONNX's backend suite through the gate, beside an oracle; `make test` runs a part of them.
conformance: $(READY)
	LIKEWISE_CONFORMANCE=all $(BIN)/python -m pytest -q tests/conformance

# Every estimator and module that converts through the gate, beside an oracle: writes docs/atlas.md.
# PART=sklearn or torch for one of them, ONLY=KMeans for one entry
atlas: $(READY)
	$(BIN)/python benchmarks/atlas.py $(if $(PART),--part $(PART)) $(if $(ONLY),--only "$(ONLY)")

# Every estimator and module that converts through `likewise export`, also with --double. PART=sklearn or torch, ONLY=KMeans
exports: $(READY)
	$(BIN)/python benchmarks/exports.py $(if $(PART),--part $(PART)) $(if $(ONLY),--only "$(ONLY)")

# Fails below the figures of benchmarks/explain_score.toml.
# FAMILY=trees or NAME=scaler for a part of it; WRITE=1 writes docs/accuracy.md
explain-score: $(READY)
	$(BIN)/python benchmarks/explain_score.py $(if $(FAMILY),--family $(FAMILY)) $(if $(NAME),--name $(NAME)) $(if $(WRITE),--write)

# Faults of three hands and natural ones: how often place and cause are found. SET=second, FAMILY=fp16, ONLY=unet, EVERY=4 for a
# part; BUDGET=30 seconds each, CPU=1 of the processor, where others use the machine too;
# WRITE=1 writes docs/locate.md
locate: $(READY)
	$(BIN)/python benchmarks/locate.py $(if $(SET),--set $(SET)) $(if $(FAMILY),--family "$(FAMILY)") $(if $(ONLY),--only "$(ONLY)") $(if $(EVERY),--every $(EVERY)) $(if $(BUDGET),--budget $(BUDGET)) $(if $(CPU),--cpu) $(if $(WRITE),--write)

# Random answers under random policies, judged by the gate and by a page of plain Python. N=1000000 for more, SEED=1 for others
oracle: $(READY)
	$(BIN)/python benchmarks/oracle.py $(if $(N),--pairs $(N)) $(if $(SEED),--seed $(SEED))

# Damaged files of every kind that is read: no exception, hang, crash or wrong PASS. COUNT=10000 files (half an hour of one core),
# SEED=1 others, ONLY=onnx for a part. What breaks a promise is kept in .fuzz
fuzz: $(READY)
	$(BIN)/python benchmarks/fuzz.py $(if $(COUNT),--count $(COUNT)) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY))

# One place of what judges and measures changed at a time: do the tests notice? SAMPLE=200 mutants, SEED=1 others, ONLY=judge,
# SECONDS=120 of tests for each
mutants: $(READY)
	$(BIN)/python benchmarks/mutants.py $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY)) $(if $(SECONDS),--seconds $(SECONDS))

# Every fault repaired by `likewise fix`, and what explanations call a verified remedy done again by hand. ONLY=trees for some
remedies: $(READY)
	$(BIN)/python benchmarks/remedies.py $(if $(ONLY),--only "$(ONLY)")

# README, guides and examples to the letter where nothing is pinned: the newest versions, then the oldest allowed.
# PAGE=docs/guide for a part; KEEP=folder keeps the environments; TORCH=torch==2.13.0 is what is installed first
newcomer: $(READY)
	$(if $(TORCH),TORCH=$(TORCH)) $(BIN)/python benchmarks/newcomer.py $(if $(PAGE),--only $(PAGE)) $(if $(KEEP),--keep $(KEEP))

# Full checks of every fault and every pair of the atlas: a PASS in 12 lines, a FAIL in 40. PART=torch (faults, sklearn)
# or ONLY=trees for some
screens: $(READY)
	$(BIN)/python benchmarks/screens.py $(if $(PART),--part $(PART)) $(if $(ONLY),--only "$(ONLY)")

# The same model file in two versions of its framework, of numpy or of Python, beside what a plain script answers. Installs packages; ONLY=xgboost
versions: $(READY)
	$(BIN)/python benchmarks/versions.py $(if $(ONLY),--only "$(ONLY)")

# MLServer, MLflow's scoring server, KServe's and FastAPI with one model on loopback: the same digits, an older model found.
# Installs packages, which are kept in .servers; ONLY=mlflow
servers: $(READY)
	$(BIN)/python benchmarks/servers.py $(if $(ONLY),--only "$(ONLY)")

clean:
	rm -rf $(VENV) .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis .fuzz .mutants .servers

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)
