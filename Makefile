# Each target does its own set-up. The first needs a few minutes for the install, the next none.
SHELL := /bin/bash
PYTHON ?= $(shell for p in python3.11 python3.12 python3; do $$p -c "" 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
STAMP := .venv/.installed

# Every process of a run imports torch and Ray, and compiling what they need anew takes each of them three seconds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: venv style check test test-ray test-all bench figures docs mutants demo clean

venv: $(STAMP)

$(STAMP): setup.cfg constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(v not in ((3, 11), (3, 12)) and f"Proteus needs Python 3.11 or 3.12, found {v[0]}.{v[1]} ($(PYTHON)). Name another: make PYTHON=python3.12 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@# The pip that comes with Python 3.11 takes a minute longer on a slow computer.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check pip==26.3
	@# Compiling all that is installed takes longer than compiling what is ever imported. setuptools warns of every editable install, and pip 26 shows it.
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev]'
	@touch $(STAMP)

style: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

check: style
	$(BIN)/mypy
	$(BIN)/pytest -q tests/house/test_imports.py tests/house/test_floors.py

# Types are checked while one process compiles the tests and what they import: a dozen that begin at once would each do it.
# Tests with Ray nodes mostly wait for Ray, so two files of them run beside the others, those that take longest first; their
# output follows that of the others. Only files with such tests are collected again.
LONGEST := tests/cluster/test_submit.py tests/cluster/test_existing_cluster.py tests/agileml/market/test_real_nodes.py
test: style
	@mkdir -p build; trap 'kill $$types $$ray 2>/dev/null' EXIT; $(BIN)/mypy & types=$$!; \
	$(BIN)/pytest -q --collect-only > build/collected.log 2>&1; \
	$(BIN)/pytest -q -m "not slow and cluster" -n 2 --dist loadfile --no-loadscope-reorder $(LONGEST) $$(grep -rl --include='test_*.py' "mark\.cluster" tests) > build/ray_tests.log 2>&1 & ray=$$!; \
	$(BIN)/pytest -q -m "not slow and not cluster" -n auto --dist worksteal; tests=$$?; \
	wait $$types || tests=1; wait $$ray || tests=1; cat build/ray_tests.log; exit $$tests

# The core of the tests with Ray (every fault in one run, submitted jobs) on another version of it: make test-ray RAY=2.54.1
# The other packages are those of .venv: a path in a .pth file is searched last. It is compiled, as a dozen processes start at once.
test-ray: venv
	@test -n "$(RAY)" || { echo "Name a version: make test-ray RAY=2.54.1"; exit 2; }
	$(BIN)/python -m venv --clear --without-pip build/ray-$(RAY)
	$(BIN)/python -c 'import site, sys; open(sys.argv[1], "w").write(site.getsitepackages()[0])' $$(echo build/ray-$(RAY)/lib/python3*/site-packages)/shared.pth
	$(BIN)/python -m pip --python build/ray-$(RAY)/bin/python install --quiet --disable-pip-version-check --no-deps ray==$(RAY)
	PYTHONPATH=$(CURDIR) build/ray-$(RAY)/bin/python -m pytest -q -m "not slow" tests/faults/test_real_nodes.py tests/cluster/test_submit.py

# All tests. Those with Ray nodes run one at a time, as some of them load both cores, beside the others; their output follows.
# SCHEDULES: how many the model runs in each of its modes; 5,000 in each take a night. CHAOS_SEEDS: how often each way to train
# goes through twelve random faults on real nodes, 2 by default; 10 take two hours more.
test-all: export SCHEDULES ?= 100
test-all: export THOROUGH := 1
test-all: check
	@mkdir -p build; trap 'kill $$ray 2>/dev/null' EXIT; \
	$(BIN)/pytest -q -m cluster > build/ray_tests.log 2>&1 & ray=$$!; \
	$(BIN)/pytest -q -m "not cluster" -n auto --dist worksteal; tests=$$?; \
	wait $$ray || tests=1; cat build/ray_tests.log; exit $$tests

# A benchmark that this computer cannot run (without root, without a GPU) says why; the others run all the same.
bench: venv
	@trap 'exit 130' INT; failed=; for b in benchmarks/bench_*.py; do echo "== $$b"; $(BIN)/python $$b --quick || failed="$$failed $$b"; done; \
	test -z "$$failed" || { echo "Not measured, see above why:$$failed"; exit 1; }

figures: venv
	$(BIN)/python -m benchmarks.figures

# Strict: a link or an anchor that leads nowhere ends it.
docs: venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "open build/site/index.html"

mutants: venv
	$(BIN)/python -m tests.model.mutants

demo: venv
	@$(BIN)/proteus run configs/demo.yaml

clean:
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache
