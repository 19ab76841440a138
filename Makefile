# Q-IM. Every target below installs what it needs by itself, once; nothing has to be run before it.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# The interpreter that makes .venv; anything from 3.11 on will do. PYTHON=/path/to/python chooses another.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3 python; do \
	  "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo "$$p"; break; }; done)
DATA ?= .qim/data
SEEDS ?= 2000
START ?= 0
PROFILE ?= swarm
JOBS ?= $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
ROUNDS ?= 10
SEED ?= 1
MINUTES ?= 10
WORKERS ?= auto
PYTEST_ARGS ?=
ACCEPTANCE_ARGS ?=

bin := .venv/bin
stamp := .venv/.installed

.PHONY: help install run test integration acceptance chaos mutants hunt check format sim bench lock clean

help: ## this list
	@echo "Q-IM: make TARGET"
	@sed -n 's/^\([a-z]*\):[^#]*## /\1\t/p' Makefile | while IFS="$$(printf '\t')" read -r name what; do \
	  printf '  %-11s %s\n' "$$name" "$$what"; done

install: $(stamp) ## .venv with the package and its development tools (the others do it by themselves)

$(stamp): pyproject.toml requirements.lock
	@[ -n "$(PYTHON)" ] && "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Q-IM needs Python 3.11 or newer, and found none on PATH (PYTHON=/path/to/python3.11 make … names one)." >&2; \
	  exit 1; }
	@"$(bin)/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || { \
	  echo "making .venv with $(PYTHON)"; \
	  "$(PYTHON)" -m venv --clear .venv || { \
	    echo "no venv: on Debian and Ubuntu 'apt-get install python3-venv' brings it." >&2; exit 1; }; }
	@echo "installing qim and its development tools into .venv"
	@"$(bin)/python" -m pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[dev]'
	@touch "$(stamp)"

run: $(stamp) ## a whole Q-IM in one process, data in .qim/data (DATA=DIR for another place)
	@echo "Q-IM starts with its data in $(DATA); Ctrl-C stops it and loses nothing."
	@echo "In a second terminal:"
	@echo "  .venv/bin/qim send --data \"$(DATA)\" --user 1 --to 2 \"hello\""
	@echo "  .venv/bin/qim pull --data \"$(DATA)\" --user 2"
	@echo "  .venv/bin/qim chat --data \"$(DATA)\" --user 1"
	@exec "$(bin)/qim" up --data "$(DATA)"

test: $(stamp) ## all tests that need nothing installed, kills included (PYTEST_ARGS='-k name', WORKERS=2)
	@"$(bin)/python" -m pytest -n "$(WORKERS)" --dist loadgroup --maxschedchunk=1 -m "not servers" $(PYTEST_ARGS)

integration: $(stamp) ## the tests against real Redis, Kafka, Cassandra and etcd, started and stopped by themselves
	@"$(bin)/python" -m pytest -n "$(WORKERS)" --dist loadgroup --maxschedchunk=1 -m servers $(PYTEST_ARGS)

acceptance: $(stamp) ## the release gate: QIM_LOAD_RATE=300 make acceptance (ACCEPTANCE_ARGS='--help'); docs/acceptance.md
	@"$(bin)/python" -m acceptance $(ACCEPTANCE_ARGS)

chaos: $(stamp) ## a storm on real servers and processes (SEED=1 MINUTES=10; needs what integration needs)
	@"$(bin)/python" -m chaos run --seed "$(SEED)" --minutes "$(MINUTES)"

mutants: $(stamp) ## plant every bug of tests/sim/mutants in turn: each must be found by a right check
	@"$(bin)/python" -m pytest -n "$(WORKERS)" tests/sim/test_mutants.py --mutants all

hunt: $(stamp) ## Hypothesis with new examples each time, ROUNDS=10 rounds; what fails is kept in .hypothesis
	@for round in $$(seq "$(ROUNDS)"); do echo "== round $$round of $(ROUNDS)"; \
	  QIM_HYPOTHESIS=hunt "$(bin)/python" -m pytest -q -n "$(WORKERS)" tests/core tests/client tests/adapters \
	    -m "not servers" $(PYTEST_ARGS) || exit 1; done

check: $(stamp) ## ruff, mypy --strict, the layer table, the house rules
	@"$(bin)/ruff" check .
	@"$(bin)/ruff" format --check .
	@"$(bin)/mypy" --strict
	@"$(bin)/lint-imports" --no-logo
	@"$(bin)/python" -m pytest -q tests/test_tidy.py

format: $(stamp) ## rewrite the sources as check wants them
	@"$(bin)/ruff" check --fix --exit-zero .
	@"$(bin)/ruff" format .

sim: $(stamp) ## a campaign of simulated worlds (SEEDS=2000 START=0 PROFILE=swarm JOBS=cores)
	@"$(bin)/qim" sim run --seeds "$(SEEDS)" --start "$(START)" --profile "$(PROFILE)" -j "$(JOBS)"

bench: $(stamp) ## every benchmark of bench/, tables and JSON
	@set -e; for file in bench/[!_]*.py; do echo "== $$file"; "$(bin)/python" "$$file"; done

lock: $(stamp) ## write today's versions of .venv to requirements.lock
	@{ sed -n '/^#/p' requirements.lock; \
	  "$(bin)/python" -m pip freeze --exclude-editable | grep -E '^[A-Za-z0-9._-]+==' | sort -f; } > .venv/lock
	@mv .venv/lock requirements.lock
	@touch "$(stamp)"

clean: ## remove caches (keeps .venv and the data)
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage dist build
	@find qim tests -name __pycache__ -type d -prune -exec rm -rf {} +
