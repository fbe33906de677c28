# Q-IM's few commands. `make setup` prepares the machine once; every other target calls it.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo up test style types topology topology-check docs bench simulate

setup:
	@$(PYTHON) -m ops.bootstrap

# Two people talk through the whole pipeline on servers of its own; exits non-zero on any mismatch.
demo: setup
	@$(BIN)/qim demo

# Keep the stack running until Ctrl-C.
up: setup
	@$(BIN)/qim up --data .qim/up

# ARGS goes to pytest: make test ARGS="tests/unit -x"
test: setup style types topology-check
	$(BIN)/pytest $(ARGS)

style: setup
	$(BIN)/ruff check .
	$(BIN)/black --check --quiet .

types: setup
	$(BIN)/mypy

topology: setup
	$(BIN)/qim topology --write topology.md

topology-check: setup
	$(BIN)/qim topology --check topology.md

docs: setup
	$(BIN)/qim settings --write docs/settings.md
	$(BIN)/qim metrics --write docs/observability.md

bench: setup
	@mkdir -p bench-results
	$(BIN)/qim bench ladder --json bench-results/ladder.json
	$(BIN)/qim bench offline --messages 2000 --json bench-results/offline.json

# Random schedules of crashes over the real code in virtual time: make simulate N=200000 [SEED=7]; REPLAY=SEED shows one.
simulate: setup
	$(BIN)/python -m tests.simulation --schedules $(or $(N),100000) $(if $(SEED),--seed $(SEED)) $(if $(REPLAY),--replay $(REPLAY))
