# `make demo` and `make test` need only git, make and Python 3.10 or newer: the rest goes into .venv.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
INSTALLED_BENCH := $(VENV)/.installed-bench
INSTALLED_BROWSER := $(VENV)/.installed-browser
INSTALLED_COMPARE := $(VENV)/.installed-compare
INSTALLED_COVERAGE := $(VENV)/.installed-coverage
PLUGINS := .venv-plugins
INSTALLED_PLUGINS := $(PLUGINS)/.installed
DOCS := .venv-docs
INSTALLED_DOCS := $(DOCS)/.installed

.PHONY: demo check test coverage load soak simulate simulate-mutations verify browser screenshots plugins compare-faults bench bench-domains docs lint wheel clean

demo: $(INSTALLED)
	$(RUN) example_project/demo.py

# Most tests wait for processes and time-outs, so that two processors are enough for four at once. ruff and mypy
# run as tests: tests/test_house.py. Compiled once: the processes that tests start write no bytecode.
test: $(INSTALLED)
	$(RUN) -m compileall -q scrapy_dq tests
	$(RUN) -m pytest -m "not soak and not plugins" -n 4 --dist loadfile --durations=15

# Before a commit: linters, types, all tests that start nothing, and some examples of the model on one Redis.
check: $(INSTALLED)
	MODEL_EXAMPLES=8 $(RUN) -m pytest -q -m "(unit or redis) and not soak" -n 4 --dist loadgroup \
	tests/unit tests/test_house.py tests/test_release.py tests/frontier/test_model.py

# A busy machine, for the tests beside it: `make load & make test`. The processes end by themselves.
BUSY ?= 6
SECONDS ?= 900
load:
	for _ in $$(seq $(BUSY)); do $(PYTHON) -c "import itertools, time; end = time.monotonic() + $(SECONDS); \
	any(time.monotonic() > end for _ in itertools.count())" & done; wait

# The long forms of the fault tests; and all that needs a Redis on the other versions of it that are here.
soak: $(INSTALLED)
	$(RUN) -m pytest -m soak --durations=50

# Whole workers and the Lua scripts under virtual time, with faults drawn from seeds: docs/reliability.md.
# ARGS="--help" tells how to run more of them, and how to repeat one.
simulate: $(INSTALLED)
	PYTHONPATH=tests $(RUN) -m simulation $(ARGS)

# How many seeds it takes to find each rule of the protocol that is taken out; some 15 minutes.
simulate-mutations: $(INSTALLED)
	PYTHONPATH=tests $(RUN) -m simulation.mutations $(ARGS)

# Every state of the protocol, within small bounds; some minutes. It needs a C++ compiler: verification/README.md.
verify: $(INSTALLED)
	$(RUN) verification/verify.py $(ARGS)

# Plugins of others, in a virtual environment of their own: docs/plugins.md.
plugins: $(INSTALLED_PLUGINS)
	$(PLUGINS)/bin/python -m pytest -m plugins tests/plugins $(ARGS)

# The page of `scrapy dq web` in the Chromium of this system, with axe, which needs npm.
browser: $(INSTALLED_BROWSER) .axe/node_modules
	$(RUN) -m pytest tests/commands/test_web_browser.py $(ARGS)

# The pictures of docs/watching.md.
screenshots: $(INSTALLED_BROWSER)
	$(RUN) docs/pictures/page.py

# Pages never parsed, beside scrapy-redis, JOBDIR and Crawlee. ARGS="--help" tells how to run a part of it.
compare-faults: $(INSTALLED_COMPARE)
	PYTHONPATH=tests $(RUN) -m benchmarks.compare_faults $(ARGS)

# Which lines no test runs, worker processes included; twice as long as `make test`.
coverage: $(INSTALLED_COVERAGE)
	$(RUN) -m coverage erase
	$(RUN) -m coverage run -m pytest -m "not soak and not plugins" -n 4 --dist loadfile $(ARGS)
	$(RUN) -m coverage combine --quiet
	$(RUN) -m coverage report

# docs/performance.md with its plots; its crawls stop after 20 minutes. ARGS="--help" tells how to measure a part of it.
bench: $(INSTALLED_BENCH)
	PYTHONPATH=tests $(RUN) -m benchmarks $(ARGS)

# The figures of docs/domains.md; about half an hour. Each takes --help, too.
bench-domains: $(INSTALLED)
	PYTHONPATH=tests $(RUN) -m benchmarks.domains
	PYTHONPATH=tests $(RUN) -m benchmarks.partitions

# The documentation site, build/docs/index.html: the generated parts anew, then Sphinx; a warning is an error.
docs: $(INSTALLED_DOCS)
	$(DOCS)/bin/python docs/generate.py
	$(DOCS)/bin/python -m sphinx -W --keep-going -q -E -d build/doctrees docs build/docs

lint: $(INSTALLED)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy --strict

# setuptools would pack what an older build left behind.
wheel: $(INSTALLED)
	rm -rf build
	$(RUN) -m pip wheel . --quiet --no-deps --no-build-isolation --wheel-dir dist

clean:
	rm -rf $(VENV) $(PLUGINS) $(DOCS) .axe build dist *.egg-info .tox .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Anew whenever the dependencies may have changed. Editable installs from a
# pyproject.toml came with pip 21.3; Python 3.10.0 brought 21.2.
$(INSTALLED): setup.cfg pyproject.toml
	$(PYTHON) -m venv --clear $(VENV)
	$(RUN) -m pip install --quiet "pip>=21.3"
	$(RUN) -m pip install --quiet --editable ".[embedded,test,lint]"
	touch $@

$(INSTALLED_BENCH): $(INSTALLED)
	$(RUN) -m pip install --quiet --editable ".[bench]"
	touch $@

$(INSTALLED_BROWSER): $(INSTALLED)
	$(RUN) -m pip install --quiet --editable ".[browser]"
	touch $@

.axe/node_modules:
	npm install --silent --prefix .axe axe-core@4

$(INSTALLED_COMPARE): $(INSTALLED)
	$(RUN) -m pip install --quiet --editable ".[compare]"
	touch $@

$(INSTALLED_COVERAGE): $(INSTALLED)
	$(RUN) -m pip install --quiet --editable ".[coverage]"
	touch $@

$(INSTALLED_PLUGINS): setup.cfg pyproject.toml
	$(PYTHON) -m venv --clear $(PLUGINS)
	$(PLUGINS)/bin/python -m pip install --quiet "pip>=21.3"
	$(PLUGINS)/bin/python -m pip install --quiet --editable ".[embedded,test,plugins]"
	touch $@

$(INSTALLED_DOCS): setup.cfg pyproject.toml
	$(PYTHON) -m venv --clear $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet "pip>=21.3"
	$(DOCS)/bin/python -m pip install --quiet --editable ".[docs]"
	touch $@
