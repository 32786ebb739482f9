# Two commands for a newcomer: `make quickstart` and `make test`. Both build `.venv` first if it is missing.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
OUT := outputs/quickstart
SCRIPT := $(RUN) -m tokenmixers.run_scripts
# Threads soon sleep while they wait for each other: beside other work, PyTorch's setting halves the speed.
quickstart test test-slow test-extras test-clients test-demo test-versions: export GOMP_SPINCOUNT = 10000
# Progress bars of what takes less than a second are not worth a line.
quickstart: export TQDM_DELAY = 1

# RUN=python3 takes an environment that is there, without the network; the checkout is then imported from a link to it.
# `make quickstart` installs what it uses, and the tests their tools on top of it.
INSTALLED := $(VENV)/.installed
TESTED := $(VENV)/.tested
ifeq ($(origin RUN),command line)
TESTED :=
INSTALLED := $(shell mkdir -p build/typing && ln -sfn ../.. build/typing/tokenmixers)
export PYTHONPATH := $(CURDIR)/build/typing:$(PYTHONPATH)
endif

# Whether a package is there.
HAS = $(shell $(RUN) -c 'import $(1)' 2>/dev/null && echo yes)

.PHONY: quickstart test test-slow test-extras test-clients test-demo test-gpu test-versions test-transformers check dist bench style clean

comma := ,
# $(call environment,FOLDER,EXTRAS,PACKAGES,CONSTRAINTS): what more than the tests need goes into environments of its own,
# so that nothing changes the one that `make quickstart` and `make test` use.
define environment
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
$(PYTHON) -m venv $(1)
$(1)/bin/python -m pip install --quiet --constraint $(or $(4),constraints.txt) torch setuptools $(3)
$(1)/bin/python -m pip install --quiet --constraint $(or $(4),constraints.txt) --no-build-isolation --editable '.[$(2)]'
endef

$(VENV)/.installed: pyproject.toml constraints.txt
	$(call environment,$(VENV),digits$(comma)plot)
	@touch $@

$(VENV)/.tested: $(VENV)/.installed
	$(call environment,$(VENV),test)
	@touch $@

quickstart: $(INSTALLED)  ## train a small gMLP on text and one on images, reload them and use them
	@rm -rf $(OUT) && mkdir -p $(OUT) && date +%s > $(OUT)/.started
	@echo '--- 1. a corpus: the documentation of Python'
	@$(SCRIPT).make_data python_docs_corpus --output_dir $(OUT)/corpus
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
	@$(SCRIPT).make_data digits_images --output_dir $(OUT)/digits
	@$(SCRIPT).run_image_classification digits.yaml
	@$(SCRIPT).classify_images --model $(OUT)/digits-gmlp --data $(OUT)/digits/validation.parquet --count 5
	@echo "--- done, in $$(($$(date +%s) - $$(cat $(OUT)/.started))) seconds"
	@echo 'Made: a text model in $(OUT)/gmlp and an image model in $(OUT)/digits-gmlp, each with its card (README.md)'
	@echo 'Pictures: $(OUT)/pictures/spatial_filters.png, $(OUT)/gmlp/history.png'
	@echo 'Try next:'
	@echo '  $(VENV)/bin/tokenmixers fill_mask --model $(OUT)/gmlp --text "Raise an [MASK] if the list is empty."'
	@echo '  $(VENV)/bin/tokenmixers run_mlm quickstart.yaml --output_dir outputs/amlp --config_name amlp-tiny'
	@echo '  $(VENV)/bin/tokenmixers push_to_hub --source $(OUT)/gmlp --repo_id me/my-gmlp --dry_run'

test: $(INSTALLED) $(TESTED)  ## the fast tests
	$(RUN) -m pytest -n 2 --dist worksteal

test-slow: $(INSTALLED) $(TESTED)  ## the other tests, and all properties on more examples
	$(RUN) -m pytest -n 2 --dist worksteal -m "slow or hypothesis" --hypothesis-profile thorough
	TOKENMIXERS_TEST_DEVICE=cpu $(RUN) -m pytest -n 2 --dist worksteal -m gpu tests/gpu

EXTRAS := $(VENV)-extras
$(EXTRAS)/.installed: pyproject.toml constraints.txt
	$(call environment,$(EXTRAS),edge$(comma)embeddings$(comma)export$(comma)quantize$(comma)test)
	@touch $@

test-extras: $(EXTRAS)/.installed  ## exports, quantisation, sentence embeddings: with the extras that the fast tests do without
	$(EXTRAS)/bin/python -m pytest -n 2 -m "slow or not slow" tests/modeling/test_exporters.py \
		tests/run_scripts/export \
		tests/run_scripts/demos/test_static_space.py \
		tests/run_scripts/test_run_sentence_embeddings.py tests/run_scripts/training/test_sentence_embeddings.py \
		tests/run_scripts/test_evaluate_embeddings.py tests/run_scripts/embeddings
	$(EXTRAS)/bin/python -m pytest -n 2 -m "slow or not slow" -k sentence_embeddings \
		tests/run_scripts/every_command tests/run_scripts/test_recipes.py

CLIENTS := $(VENV)-clients
$(CLIENTS)/.installed: pyproject.toml constraints.txt
	$(call environment,$(CLIENTS),embeddings$(comma)export$(comma)test,openvino setfit)
	@touch $@

test-clients: $(CLIENTS)/.installed  ## programs of other libraries on our models, written from their documentation
	$(CLIENTS)/bin/python -m pytest -m "slow or not slow" tests/clients

# Gradio does not take the version of Pillow that all else is tested with.
DEMO := $(VENV)-demo
$(DEMO)/.installed: pyproject.toml constraints.txt
	@mkdir -p build && grep -v '^pillow=' constraints.txt > build/constraints-demo.txt
	$(call environment,$(DEMO),demo$(comma)test,playwright,build/constraints-demo.txt)
	@touch $@

test-demo: $(DEMO)/.installed  ## the demo in a headless Chromium, which has to be there
	$(DEMO)/bin/python -m pytest -m "slow or not slow" tests/run_scripts/demos

test-gpu: $(INSTALLED) $(TESTED)  ## everything on a GPU, in ten minutes; RUN=python3 with the packages that are there
	$(RUN) -m pytest $(if $(INSTALLED)$(call HAS,xdist),-n auto --maxprocesses 8 --dist worksteal) \
		$(if $(call HAS,pytest_timeout),--timeout 180) -m gpu tests/gpu

# The oldest and the newest versions of PyTorch and Transformers. Where the index lacks them: PAIRS=2.13.0/5.24.0
PAIRS := 2.11.0/5.23.0 2.15.0/5.24.0
test-versions: $(addprefix test-versions/,$(PAIRS))  ## the fast tests with the oldest and the newest PyTorch and Transformers

test-versions/%:
	@mkdir -p build/versions/$*
	@sed -e 's/^torch=.*/torch==$(patsubst %/,%,$(dir $*))/' -e 's/^transformers=.*/transformers==$(notdir $*)/' \
		constraints.txt > build/versions/$*/constraints.txt
	$(call environment,build/versions/$*,test,,build/versions/$*/constraints.txt)
	build/versions/$*/bin/python -m pytest -n 2 --dist worksteal

check: $(VENV)/.tested  ## style, and the types of the library
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	@mkdir -p build/typing && ln -sfn ../.. build/typing/tokenmixers
	$(RUN) -m mypy

dist: $(INSTALLED) $(TESTED)  ## source distribution and wheel, in dist/
	rm -rf dist *.egg-info
	$(RUN) -m build --no-isolation

# timm asks for torchvision, of which the package index may have another build than that of PyTorch: it does without.
PEERS := $(VENV)-bench
$(PEERS)/.installed: pyproject.toml constraints.txt
	$(call environment,$(PEERS),bench)
	$(PEERS)/bin/python -m pip install --quiet --constraint constraints.txt --no-deps timm
	@touch $@

bench: $(if $(INSTALLED),$(PEERS)/.installed)  ## our models and others side by side; hours. BENCH="--quick" takes minutes, BENCH=--gpu a quarter hour
	MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=17179869184 MALLOC_TOP_PAD_=268435456 \
		$(if $(INSTALLED),$(PEERS)/bin/python,$(RUN)) -m tokenmixers.run_scripts.benchmark --output_dir outputs/benchmark $(BENCH)

# Transformers' own model tests ship in its source distribution alone.
SUITE := $(VENV)/transformers-suite
$(SUITE)/.fetched: $(VENV)/.tested
	rm -rf $(SUITE) && mkdir -p $(SUITE)
	$(RUN) -m pip install --quiet --no-deps --target $(SUITE)/packages parameterized
	$(RUN) -m pip download --quiet --no-deps --no-binary :all: --no-build-isolation --dest $(SUITE) \
		transformers==$$($(RUN) -c 'import importlib.metadata as m; print(m.version("transformers"))')
	tar -xzf $(SUITE)/*.tar.gz -C $(SUITE) --strip-components=1
	rm -rf $(SUITE)/src/transformers  # its tests import the library from there: let it be the installed one
	ln -s "$$($(RUN) -c 'import transformers; print(transformers.__path__[0])')" $(SUITE)/src/transformers
	touch $(SUITE)/tests/__init__.py $@
	printf '[pytest]\naddopts = --import-mode=prepend\n' > $(SUITE)/pytest.ini

test-transformers: $(SUITE)/.fetched  ## Transformers' own model tests, the slow ones too, on our classes
	RUN_SLOW=1 PYTHONPATH=$(SUITE):$(SUITE)/packages $(RUN) -m pytest -c $(SUITE)/pytest.ini --rootdir . -q -n 2 -W ignore tests/transformers_suite.py

style: $(VENV)/.installed
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean:
	rm -rf $(VENV) $(EXTRAS) $(CLIENTS) $(DEMO) $(PEERS) build dist outputs *.egg-info .mypy_cache
