# Everything a newcomer needs: `make demo` and `make test` set up the environment themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-data test-federation test-flower test-faults test-fuzz check bits chaos bench bench-gpu docs results wheel clean

demo: $(STAMP)
	$(BIN)/tarry demo

test: check
	$(BIN)/pytest -n 2 -m "not data and not federation and not faults and not fuzz"

# Checks on real data sets; TARRY_DATA names the folder that holds them.
test-data: $(STAMP)
	$(BIN)/pytest -m data

# Thousands of damaged files and random settings; TARRY_FUZZ is their number, TARRY_FUZZ_SEED the first seed.
test-fuzz: $(STAMP)
	$(BIN)/pytest -n 2 -m fuzz

# Federations whose parts are killed; minutes.
test-federation: $(STAMP)
	$(BIN)/pytest -m federation

# The tests of deploy with another version of Flower, which replaces the pinned one in an environment of its own:
#     make test-flower FLWR=1.42.0
FLWR ?= 1.42.0
OTHER := .venv-flwr-$(FLWR)
test-flower:
	test -x $(OTHER)/bin/python || $(PYTHON) -m venv $(OTHER)
	$(OTHER)/bin/python -m pip install --quiet --constraint constraints.txt torch
	$(OTHER)/bin/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	$(OTHER)/bin/python -m pip install --quiet --no-deps "flwr==$(FLWR)"
	$(OTHER)/bin/pytest -n 2 tests/deploy

# Every call on a file of a run fails once in every way; minutes.
test-faults: $(STAMP)
	$(BIN)/pytest -m faults -s

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# No number changes: runs of this tree and of a reference commit, compared to the bit. Options go in BITS="--quick".
bits: $(STAMP)
	$(BIN)/python tools/bits.py $(BITS)

# Trouble for runs (kills, signals, damaged files, a full disk, ...) from one seed, and their results checked.
SECONDS ?= 120
SEED ?= 0
chaos: $(STAMP)
	$(BIN)/python -m tools.chaos --seconds $(SECONDS) --seed $(SEED) $(CHAOS)

# More than an hour; other frameworks are installed for comparison, into environments of their own (8 GB in the cache folder).
bench: $(STAMP)
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/batched.py --lanes 1,2 --size 0,1 --rounds 9 --name cpu-batched
	$(BIN)/python benchmarks/batched.py --own-conv --lanes 1,2 --only lenet5 --rounds 9 --name cpu-lenet5-own-conv
	$(BIN)/python benchmarks/server.py
	TARRY_NUMBA=0 $(BIN)/python benchmarks/server.py --only orthofl --name server-without-numba
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python benchmarks/cache.py --updates 400
	$(BIN)/python benchmarks/long_run.py
	$(BIN)/python benchmarks/verify.py
	$(BIN)/python benchmarks/local_rules.py
	$(BIN)/python benchmarks/ray_scale.py
	$(BIN)/python benchmarks/federation.py
	$(BIN)/python benchmarks/federation.py --compare --nodes 2
	$(BIN)/python benchmarks/fleet.py --nodes 50,200 --seconds 60
	$(BIN)/python benchmarks/fleet.py --nodes 200 --links 2 --seconds 60 --name fleet-two-links
	TARRY_QUICK_LINK=0 $(BIN)/python benchmarks/fleet.py --nodes 50 --seconds 40 --name fleet-without-quick-link
	$(BIN)/python benchmarks/fleet.py --nodes 1000 --visit 60 --seconds 600 --ramp 30 --replay --no-alone --name fleet-1000
	$(BIN)/python benchmarks/slow_clients.py --seconds 8
	$(BIN)/python benchmarks/large_model.py --updates 4
	$(BIN)/python benchmarks/peers/run.py --out benchmarks/results/peers.json --seconds 10
	$(BIN)/python benchmarks/page.py

# On a machine with a GPU, with the torch that is there (PYTHON=...): a quarter of an hour, most of it for compiling.
TOGETHER = PYTHONPATH=src $(PYTHON) benchmarks/batched.py --device cuda
bench-gpu:
	$(TOGETHER) --own-conv --only lenet5 --rounds 4 --name gpu-lenet5
	$(TOGETHER) --only lenet5 --rounds 3 --name gpu-lenet5-cudnn
	$(TOGETHER) --own-conv --compile --only lenet5-100 --rounds 4 --name gpu-lenet5-100-compiled
	$(TOGETHER) --own-conv --lanes 4 --only cnn-25 --rounds 3 --name gpu-cnn
	$(TOGETHER) --own-conv --compile --lanes 4 --only cnn --rounds 4 --name gpu-cnn-compiled
	$(TOGETHER) --channels-last --compile --lanes 4 --size 1 --only resnet18-25 --rounds 4 \
	  --name gpu-resnet18-channels-last
	$(TOGETHER) --compile --lanes 4 --size 1 --only resnet18-25 --rounds 4 --name gpu-resnet18-channels-first
	$(PYTHON) benchmarks/page.py

# The pages of docs/methods, from the registry; then the documentation site, in build/site. A warning is an error.
docs: $(STAMP)
	$(BIN)/python docs/pages.py
	$(BIN)/sphinx-build -q -W --keep-going -b html docs build/site

# docs/results.md and its pictures, from the results under experiments/.
results: $(STAMP)
	$(BIN)/tarry reproduce --page

wheel: $(STAMP)
	$(BIN)/python -m build --wheel --outdir dist .

# torch comes first and alone, so that nothing below pulls another build of it.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tarry needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
