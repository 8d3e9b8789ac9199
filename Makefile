# The verbs of this project, the same by hand and in CI.
.DEFAULT_GOAL := help
PYTHON ?= python3
PY := .venv/bin/python
# Quiet where a library would draw progress bars into a log.
export HF_HUB_DISABLE_PROGRESS_BARS = 1
export TOKENIZERS_PARALLELISM = false

# Where the CPU build of torch is: a wheel folder where pip has one, else PyTorch's own index.
TORCH_SOURCE = $(if $(PIP_FIND_LINKS),$(PIP_FIND_LINKS:%=--find-links %),\
	--extra-index-url https://download.pytorch.org/whl/cpu --index-strategy unsafe-best-match)

SUDO = $(if $(filter-out 0,$(shell id -u)),sudo -E)

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## make .venv from requirements.txt; nothing to do when it is up to date
	@builder/setup.sh "$(PYTHON)"

models: setup ## make the models of `make run` and of the tests, each once
	@$(PY) tests/models.py

# Without MODEL_NAME the embedded model is served, in eager mode, which starts fastest.
run: export VLLM_CPU_KVCACHE_SPACE ?= 1
ifeq ($(MODEL_NAME),)
EMBEDDED := smollm2-135m-instruct
run: export MODEL_NAME := $(CURDIR)/.cache/models/$(EMBEDDED)
run: export SERVED_MODEL_NAME ?= HuggingFaceTB/SmolLM2-135M-Instruct
run: export MAX_MODEL_LEN ?= 2048
run: export ENFORCE_EAGER ?= true
endif
run: setup ## serve a model on this machine, behind a RunPod endpoint on this machine
	@$(if $(EMBEDDED),$(PY) tests/models.py $(EMBEDDED) >/dev/null)
	@$(PY) -m local_endpoint --hello "Tell me in two sentences what the Moon is." \
		$(ENDPOINT) -- $(PY) -m worker

doctor: setup ## does a model fit a card? MODEL_NAME=org/model GPU=L40S, and any other variable
	@$(PY) -m worker --doctor

format: setup ## let ruff decide matters of taste
	@$(PY) -m ruff format . && $(PY) -m ruff check --no-cache --fix .

docs: setup ## rewrite the generated pages
	@$(PY) docs/generate.py

check: setup ## format, lint, types, generated pages, and what must agree
	@$(PY) -m ruff format --check . && $(PY) -m ruff check --no-cache . && $(PY) -m mypy
	@builder/lint/run.sh
	@$(PY) builder/agree.py && $(PY) builder/sdk_only.py --check
	@$(PY) docs/generate.py --check

clients: setup ## install the real clients that the tests run, each in its own environment
	@tests/clients/setup.sh

# The worker runs on another version of RunPod's SDK with SDK=1.12.0 (or any other).
OTHER_SDK = 1.12.0
.cache/sdk/%:
	@rm -rf $@.part && $(PY) -m pip install -qq --no-deps --target $@.part runpod==$* && mv $@.part $@
# What a checkpoint may need beside vLLM, in a folder of its own.
GGUF_PLUGIN = .cache/plugins/vllm-gguf-plugin==0.0.5
.cache/plugins/%:
	@rm -rf $@.part && $(PY) -m pip install -qq --no-deps --target $@.part $* && mv $@.part $@
test test-all: export SDK_FOLDERS = $(CURDIR)/.cache/sdk/$(OTHER_SDK)
test test-all: export PYTHONPATH = $(if $(SDK),$(CURDIR)/.cache/sdk/$(SDK))

SDKS = $(addprefix .cache/sdk/,$(sort $(OTHER_SDK) $(SDK)))

test: models clients $(SDKS) ## every test of the day; SDK=1.12.0: on another SDK
	@$(PY) -m pytest -q -m "not slow and not image"

test-all: models clients $(SDKS) $(GGUF_PLUGIN) ## every test, for the night
	@$(PY) -m pytest -q -m "not image"

# Another vLLM is put before the installed one; its platform is the CPU, whatever it was built for.
CANARY = $(CURDIR)/.cache/canary/$(VLLM)
canary: setup ## name what the worker touches of vLLM and is no longer there: VLLM=0.33.0
	@$(if $(VLLM),cd tests && ../$(PY) -m canary.fetch "$(VLLM)" "$(CANARY)")
	@$(if $(VLLM),PYTHONPATH="$(CANARY)" VLLM_TARGET_DEVICE=cpu) \
		$(PY) -m pytest tests/canary -q --tb=no -rN --no-header

image-test: models ## build the image, and one with a model inside, and run them (root, no Docker)
	@command -v buildah >/dev/null && command -v debootstrap >/dev/null || { \
		$(SUDO) apt-get update -qq && $(SUDO) apt-get install -qq -y buildah debootstrap \
		debian-archive-keyring iproute2 >/dev/null; }
	@$(SUDO) $(PY) -m pytest -q -m image -s tests/image

bench: models ## the figures of benchmarks/, with their conditions, and docs/benchmarks.md
	@for file in benchmarks/[a-z]*.py; do $(PY) $$file --save || exit 1; done
	@$(PY) benchmarks/_page.py

lock: setup ## rewrite requirements.txt from builder/requirements.in
	@$(PY) -m uv pip compile --quiet --universal --python-version 3.11 --no-header \
		--annotation-style line --overrides builder/overrides.txt \
		--excludes builder/excludes.txt --no-emit-find-links --no-emit-index-url $(TORCH_SOURCE) \
		builder/requirements.in --output-file requirements.txt
	@$(PY) -m uv pip compile --quiet --universal --python-version 3.11 --no-header \
		--annotation-style line --no-emit-find-links --no-emit-index-url $(TORCH_SOURCE) \
		builder/quantize.in --output-file builder/quantize.txt
	@$(MAKE) --no-print-directory setup && $(PY) builder/sdk_only.py

raise: setup ## raise vLLM to the newest version, everywhere
	@$(PY) builder/raise_vllm.py $(VERSION)
	@$(MAKE) --no-print-directory lock docs

.PHONY: help setup models clients run doctor format docs check test test-all canary \
	image-test bench lock raise
