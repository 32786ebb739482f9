# Two commands for a newcomer: `make quickstart` and `make test`. Both build `.venv` first if it is missing.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
OUT := outputs/quickstart
SCRIPT := $(RUN) -m tokenmixers.run_scripts
# Threads soon sleep while they wait for each other: beside other work, PyTorch's setting halves the speed.
quickstart test test-slow test-extras test-demo: export GOMP_SPINCOUNT = 10000

# RUN=python3 takes an environment that is there, without the network; the checkout is then imported from a link to it.
INSTALLED := $(VENV)/.installed
ifeq ($(origin RUN),command line)
INSTALLED := $(shell mkdir -p build/typing && ln -sfn ../.. build/typing/tokenmixers)
export PYTHONPATH := $(CURDIR)/build/typing:$(PYTHONPATH)
endif

# Whether a package is there.
HAS = $(shell $(RUN) -c 'import $(1)' 2>/dev/null && echo yes)

.PHONY: quickstart test test-slow test-extras test-demo test-gpu test-transformers check dist bench style clean

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --constraint constraints.txt torch setuptools
	$(RUN) -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[test]'
	@touch $@

quickstart: $(VENV)/.installed  ## train a small gMLP on text and one on images, reload them and use them
	@rm -rf $(OUT) && mkdir -p $(OUT) && date +%s > $(OUT)/.started
	@echo '--- 1. a corpus: the documentation of Python'
	@$(SCRIPT).small_data.python_docs_corpus --output_dir $(OUT)/corpus
	@echo '--- 2. a tokenizer and a gMLP, trained on it'
	@$(SCRIPT).run_mlm quickstart.yaml
	@echo '--- 3. the gMLP, reloaded, fills masks'
	@$(SCRIPT).fill_mask --model $(OUT)/gmlp --top_k 3 --text \
		'Return True if the object is an [MASK] of the class.' \
		'If the file does not [MASK], an error is raised.' \
		'The first argument must be a [MASK] of integers.'
	@echo '--- 4. a picture of its spatial weights'
	@$(SCRIPT).plot_spatial_weights --model $(OUT)/gmlp --output_dir $(OUT)/pictures --columns 2
	@echo '--- 5. a gMLP for images, trained on handwritten digits'
	@$(SCRIPT).small_data.digits_images --output_dir $(OUT)/digits
	@$(SCRIPT).run_image_classification digits.yaml
	@$(SCRIPT).classify_images --model $(OUT)/digits-gmlp --data $(OUT)/digits/validation.parquet --count 5
	@echo "--- done, in $$(($$(date +%s) - $$(cat $(OUT)/.started))) seconds"
	@echo 'Made: a text model in $(OUT)/gmlp and an image model in $(OUT)/digits-gmlp, each with its card (README.md)'
	@echo 'Pictures: $(OUT)/pictures/spatial_filters.png, $(OUT)/gmlp/history.png'
	@echo 'Try next:'
	@echo '  $(VENV)/bin/tokenmixers fill_mask --model $(OUT)/gmlp --text "Raise an [MASK] if the list is empty."'
	@echo '  $(VENV)/bin/tokenmixers run_mlm quickstart.yaml --output_dir outputs/amlp --config_name amlp-base'
	@echo '  $(VENV)/bin/tokenmixers push_to_hub --source $(OUT)/gmlp --repo_id me/my-gmlp --dry_run'

test: $(VENV)/.installed  ## the fast tests
	$(RUN) -m pytest -n 2 --dist worksteal

test-slow: $(VENV)/.installed  ## the other tests, and all properties on more examples
	$(RUN) -m pytest -n 2 --dist worksteal -m "slow or hypothesis" --hypothesis-profile thorough
	TOKENMIXERS_TEST_DEVICE=cpu $(RUN) -m pytest -n 2 --dist worksteal -m gpu tests/gpu

test-extras: $(VENV)/.installed  ## exports, quantisation, sentence embeddings, lm-eval: with the extras that the fast tests do without
	$(RUN) -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[edge,embeddings,eval,export,quantize]'
	$(RUN) -m pytest -n 2 -m "slow or not slow" tests/modeling/test_exporters.py tests/run_scripts/test_serving_formats.py \
		tests/run_scripts/test_lm_eval.py tests/run_scripts/test_run_sentence_embeddings.py \
		tests/run_scripts/training/test_sentence_embeddings.py
	$(RUN) -m pytest -n 2 -m "slow or not slow" -k sentence_embeddings tests/run_scripts/test_interrupted_runs.py tests/run_scripts/test_recipes.py

# Gradio does not take the version of Pillow that all else is tested with.
DEMO := $(VENV)-demo
test-demo:  ## the demo in a headless Chromium, which has to be there, in an environment of its own
	@mkdir -p build && grep -v '^pillow=' constraints.txt > build/constraints-demo.txt
	$(PYTHON) -m venv $(DEMO)
	$(DEMO)/bin/python -m pip install --quiet --constraint build/constraints-demo.txt torch setuptools playwright
	$(DEMO)/bin/python -m pip install --quiet --constraint build/constraints-demo.txt --no-build-isolation --editable '.[demo,test]'
	$(DEMO)/bin/python -m pytest -m "slow or not slow" tests/run_scripts/test_demo.py tests/run_scripts/demos

test-gpu: $(INSTALLED)  ## everything on a GPU, in ten minutes; RUN=python3 with the packages that are there
	$(RUN) -m pytest $(if $(INSTALLED)$(call HAS,xdist),-n auto --maxprocesses 8 --dist worksteal) \
		$(if $(call HAS,pytest_timeout),--timeout 180) -m gpu tests/gpu

check: $(VENV)/.installed  ## style, and the types of the library
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	@mkdir -p build/typing && ln -sfn ../.. build/typing/tokenmixers
	$(RUN) -m mypy

dist: $(VENV)/.installed  ## source distribution and wheel, in dist/
	rm -rf dist *.egg-info
	$(RUN) -m build --no-isolation

bench: $(INSTALLED)  ## our models and others side by side; hours. BENCH="--quick" takes minutes, BENCH=--gpu a quarter hour
	$(if $(INSTALLED),$(RUN) -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[bench]')
	MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=17179869184 MALLOC_TOP_PAD_=268435456 \
		$(SCRIPT).benchmark --output_dir outputs/benchmark $(BENCH)

# Transformers' own model tests ship in its source distribution alone.
SUITE := $(VENV)/transformers-suite
$(SUITE)/.fetched: $(VENV)/.installed
	$(RUN) -m pip install --quiet parameterized
	rm -rf $(SUITE) && mkdir -p $(SUITE)
	$(RUN) -m pip download --quiet --no-deps --no-binary :all: --no-build-isolation --dest $(SUITE) \
		transformers==$$($(RUN) -c 'import importlib.metadata as m; print(m.version("transformers"))')
	tar -xzf $(SUITE)/*.tar.gz -C $(SUITE) --strip-components=1
	rm -rf $(SUITE)/src/transformers  # its tests import the library from there: let it be the installed one
	ln -s "$$($(RUN) -c 'import transformers; print(transformers.__path__[0])')" $(SUITE)/src/transformers
	touch $(SUITE)/tests/__init__.py $@
	printf '[pytest]\naddopts = --import-mode=prepend\n' > $(SUITE)/pytest.ini

test-transformers: $(SUITE)/.fetched  ## Transformers' own model tests, the slow ones too, on our classes
	RUN_SLOW=1 PYTHONPATH=$(SUITE) $(RUN) -m pytest -c $(SUITE)/pytest.ini --rootdir . -q -n 2 -W ignore tests/transformers_suite.py

style: $(VENV)/.installed
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean:
	rm -rf $(VENV) $(DEMO) build dist outputs *.egg-info .mypy_cache
