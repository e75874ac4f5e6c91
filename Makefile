# demo, test, bench, lint and docs set up .venv on their own when it is missing. PYTHON chooses the interpreter of a new one.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
READY := $(VENV)/.ready
INSTALLED := $(VENV)/.installed
DOCS := $(VENV)/.docs
# A build for use on this machine and for the tests needs one architecture; a wheel takes setup.py's own list.
export SPECDEC_CUDA_ARCHS ?= 90a
# Two test workers, one thread each: more only gets in each other's way on a small machine.
TEST_JOBS ?= 2

.PHONY: demo test bench lint docs build clean

demo: build
	$(BIN)/specdec-kernels info
	$(BIN)/specdec-kernels generate --show --method rejection
	$(BIN)/specdec-kernels generate --show --method race

test: build
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(PY) -m pytest -q -n $(TEST_JOBS) --benchmark-disable

bench: build
	OMP_PROC_BIND=close OMP_PLACES=cores $(PY) -m pytest -q bench -o addopts= -o python_files='bench_*.py' \
		-o python_functions='bench_*' --benchmark-quiet --benchmark-disable-gc

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The site, in site/: strict, so a link or an anchor that leads nowhere is an error. Sources are read, not imported.
docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

build: $(INSTALLED)
	$(PY) setup.py -q build_ext --inplace

clean:
	rm -rf build dist site *.egg-info specdec_kernels/*.so specdec_kernels/lib

$(READY): requirements-dev.txt
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q "$$(grep '^torch==' requirements-dev.txt)"
	grep -v '# docs$$' requirements-dev.txt | $(BIN)/pip install -q -r /dev/stdin
	touch $@

$(DOCS): requirements-dev.txt
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	grep -E '# docs$$|^ruff==' requirements-dev.txt | $(BIN)/pip install -q -r /dev/stdin
	touch $@

$(INSTALLED): $(READY) setup.py pyproject.toml
	$(PY) setup.py -q build_ext --inplace
	PYTHONWARNINGS=ignore $(BIN)/pip install -q --no-build-isolation --no-deps -e .
	touch $@
