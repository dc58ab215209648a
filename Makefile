# Everything a fresh Linux machine with Python needs is set up by these targets themselves.
#   make demo    a few news articles through the whole worker, on an embedded broker
#   make test    requirements, lint, types, the whole suite on real Kafka and Redis, and the kernels under Triton's interpreter
#   make bench   the benches that need no GPU
#   make carry   what a machine with a GPU and no network needs for `python3 bench/card.py --part 1|2|3`, into .carry
#   make board   the Grafana board drawn into board.png, from PROMETHEUS (default http://127.0.0.1:9090)

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
KERNELS ?= .venv-kernels
export PIP_DISABLE_PIP_VERSION_CHECK = 1
export OMP_NUM_THREADS ?= 2
SITE := 'import site; print(site.getsitepackages()[0])'

.PHONY: demo test chaos chaos-long soak bench carry board lint venv requirements test-kernels clean

demo: venv
	@$(BIN)/spinf-stream demo

SUITE = $(BIN)/python -m pytest -m "not cuda" --durations=15
INTERPRETED = $(KERNELS)/bin/python -m pytest -m "not cuda" tests/kernels

# Both run whatever becomes of the first, and either fails it.
test: requirements lint $(KERNELS)/.installed
	@echo '$(SUITE)'; $(SUITE); suite=$$?; echo '$(INTERPRETED)'; $(INTERPRETED); kernels=$$?; \
	echo "make test: the suite ended with $$suite, the kernels with $$kernels"; test $$suite$$kernels = 00

# Faults on real services, audited: every kind once (part of `make test` too); at length a good half hour.
chaos: venv requirements
	$(BIN)/python tests/process/chaos.py

chaos-long: venv requirements
	$(BIN)/python tests/process/chaos.py --long

# One worker for 20 minutes, with restarts of Redis and the broker: memory, descriptors and threads stay flat.
soak: venv requirements
	$(BIN)/python tests/process/soak.py

# Against plain transformers, on this machine's CPU; tens of minutes. The GPU's are in bench/ too.
bench: venv requirements
	$(BIN)/python bench/e2e_news.py $(addprefix --data ,$(wildcard ../shared/data/bbc_test.jsonl))
	$(BIN)/python bench/headline.py --engine ours,ours-cold,transformers,transformers-prefix-cache,transformers-prefix-batch \
		$(addprefix --job ,$(wildcard ../shared/bench/headline.json)) --articles 2

carry: venv
	$(BIN)/python bench/card.py --prepare .carry $(addprefix --job ,$(wildcard ../shared/bench/headline.json)) \
		$(addprefix --peer ,$(wildcard ../shared/bench/peer_spinf_serve.py))

PROMETHEUS ?= http://127.0.0.1:9090
MINUTES ?= 30

# The same queries as in Grafana, for where there is none.
board: venv
	$(BIN)/python compose/board.py --prometheus $(PROMETHEUS) --minutes $(MINUTES)

lint: venv
	$(BIN)/ruff check .
	$(BIN)/mypy

venv: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is missing: make PYTHON=python3.12 (or: apt-get install -y python3)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "The venv module is missing: apt-get install -y python3-venv"; exit 1; }
	@echo "installing into $(VENV): about 3 GB to download, some minutes"
	$(BIN)/python -m pip install -q -c constraints.txt setuptools
	$(BIN)/python -m pip install -q -c constraints.txt --no-build-isolation -e '.[demo,dev,report,otel]'
	@touch $@

# One line a requirement, with the command that brings it; SPINF_TEST_KAFKA and SPINF_TEST_REDIS stand in for servers.
requirements: venv
	@$(BIN)/python tests/requirements.py

# The Triton interpreter and the opcode checks need an older Triton and numpy than the suite (DECISIONS 23): a second
# environment with those two before everything of the first.
test-kernels: $(KERNELS)/.installed
	$(INTERPRETED)

$(KERNELS)/.installed: kernels/requirements.txt $(VENV)/.installed
	$(PYTHON) -m venv $(KERNELS)
	$(KERNELS)/bin/python -m pip install -q --no-deps -r kernels/requirements.txt
	echo "import site; site.addsitedir('$$($(BIN)/python -c $(SITE))')" > "$$($(KERNELS)/bin/python -c $(SITE))/base.pth"
	@touch $@

clean:
	rm -rf $(VENV) $(KERNELS) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
