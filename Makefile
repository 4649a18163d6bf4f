# `make` lists the targets. Those that run Python make .venv first if there is none,
# with only the packages they need. Another interpreter: PYTHON=python3.12 make test
# (after make clean, if there is a .venv already). Another PyTorch, in an environment of its own:
# make test TORCH=2.14.1

PYTHON ?= python3
VENV = .venv$(if $(TORCH),-torch-$(TORCH))
PY = $(VENV)/bin/python
PARTS = coefficients fitting codegen kernels # of the package actfit, beside its folder
# A process for each core; tests that stand together run in one of them, which makes once what they share.
# Bytecode is kept, whatever the environment says: else each process of each run rewrites all tests anew.
PYTEST = PYTHONDONTWRITEBYTECODE= $(PY) -m pytest -n auto --dist worksteal

.PHONY: help demo test test-rest test-all lint format coefficients kernels check gallery docs benchmarks gpu training clean
.DELETE_ON_ERROR:
.NOTPARALLEL:

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1@\2/p' Makefile | awk -F@ '{ printf "%-20s %s\n", $$1, $$2 }'

demo: $(VENV)/ready-demo ## the optimal 3-bit derivative of GELU: table, proof, picture
	@$(PY) -m fitting.fewbit --fn gelu --bits 3 --plot gelu-3bit.png
	@echo
	@echo "The picture is gelu-3bit.png; to see it: xdg-open gelu-3bit.png (Linux), open gelu-3bit.png (macOS)."
	@echo "To check every coefficient file, the one above with them: make check"

test: $(VENV)/ready-test ## run the quick tests, four minutes; some of them: ARGS='-k layout'; another PyTorch: TORCH=2.14.1
	@$(PYTEST) --tier quick $(ARGS)

test-rest: $(VENV)/ready-test ## run the tests that make test leaves out
	@$(PYTEST) --tier rest $(ARGS)

test-all: $(VENV)/ready-test ## run all tests, half an hour
	@$(PYTEST) $(ARGS)

# Types are checked in the places of a wheel: mypy follows no __path__.
lint: $(VENV)/ready-lint ## check format, style and types
	@$(PY) -m ruff format --check .
	@$(PY) -m ruff check .
	@places=$$(mktemp -d) && trap "rm -r $$places" EXIT && mkdir $$places/actfit && \
		ln -s $(addprefix $(CURDIR)/,$(wildcard actfit/*.* actfit/integrations $(PARTS))) $$places/actfit && \
		ln -s $(CURDIR)/notebooks $$places && cd $$places && $(abspath $(PY)) -m mypy \
		--cache-dir $(CURDIR)/.mypy_cache --config-file $(CURDIR)/pyproject.toml -p actfit -p notebooks.gallery

format: $(VENV)/ready-lint ## format the code and mend what can be mended
	@$(PY) -m ruff check --fix-only .
	@$(PY) -m ruff format .

coefficients: $(VENV)/ready-demo ## make all coefficient files again
	@$(PY) -m fitting.fewbit --all --root coefficients/data
	@$(PY) -m fitting.fewbit --all --joint --root coefficients/data
	@$(PY) -m fitting.invact --all --jobs -1 --root coefficients/data
	@$(PY) -m fitting.invact --all --engine published --root coefficients/data

kernels: $(VENV)/ready-demo ## emit all kernels again, from the catalogue and the coefficient files
	@$(PY) -m codegen emit --all

check: $(VENV)/ready-demo ## verify all coefficient files and all emitted kernels
	@$(PY) -m coefficients check
	@$(PY) -m codegen check

gallery: $(VENV)/ready-test ## draw every function and fit on one page, and the notebooks: build/gallery/index.html
	@$(PY) -m notebooks.render --out build/gallery/notebooks
	@$(PY) -m notebooks.gallery --out build/gallery

docs: $(VENV)/ready-test ## build the pages of docs as a site: build/site/index.html
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet --strict --site-dir build/site
	@echo "The site is build/site/index.html."

benchmarks: $(VENV)/ready-test ## measure accuracy, memory and speed, for the tables in README and docs; up to two hours
	@$(PY) -m benchmarks.run accuracy memory speed
	@$(PY) -m benchmarks.report

gpu: ## on a GPU: tests, speed, memory, models, for all tables; some of it: STEPS="tests speed"; without a GPU: DRY=1
	@$(if $(wildcard $(VENV)/ready-test),$(PY),$(PYTHON)) -m benchmarks.gpu $(if $(STEPS),--steps "$(STEPS)") \
		$(if $(LIMIT),--limit $(LIMIT)) $(if $(DRY),--dry) $(if $(AGAIN),--again)

training: $(VENV)/ready-test ## train with every method, compare with stock, write docs/results/training.md
	@$(PY) -m benchmarks.run training
	@$(PY) -m benchmarks.report

clean: ## remove what make made: .venv and those for other PyTorchs, caches, builds, the demo's picture
	rm -rf .venv .venv-torch-* .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist gelu-3bit.png
	find $(wildcard actfit benchmarks coefficients fitting codegen kernels notebooks tests) \
		-name __pycache__ -prune -exec rm -rf {} +

# Triton's interpreter of torch 2.9 and 2.10 fails with NumPy 2.4.
# One stamp per set of packages, written last: a set-up that failed half-way is taken up again.
$(VENV)/ready-%: pyproject.toml constraints.txt
	@command -v "$(PYTHON)" >/dev/null || \
		{ echo "$(PYTHON) is not here; name a Python 3.11 or newer: PYTHON=/path/to/python make ..." >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; v = sys.version_info; \
		sys.exit(v < (3, 11) and "$(PYTHON) is %d.%d, but 3.11 or newer is needed: PYTHON=python3.12 make ..." % v[:2])'
	@$(PY) -m pip --version >/dev/null 2>&1 || { echo "Making $(VENV) ..."; "$(PYTHON)" -m venv --clear $(VENV); }
	@sed $(if $(TORCH),-e 's/^torch==.*/torch==$(TORCH)/' -e '/^triton==/d' -e 's/^numpy==.*/numpy<2.4/') -e '' constraints.txt >$(VENV)/constraints.txt
	@echo "Installing what $* needs into $(VENV) (once; a minute or so) ..."
	@$(PY) -m pip install -qq --disable-pip-version-check -c $(VENV)/constraints.txt \
		-e '.$(if $(filter test lint,$*),[$*])' >$(VENV)/install.log 2>&1 || \
		{ echo "could not install; is there network? (what pip says: $(VENV)/install.log)" >&2; exit 1; }
	@touch $@
