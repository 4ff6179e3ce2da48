# `make demo` and `make test` need git, make and Python 3.10 or newer. They install everything else in .venv.
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

# Many tests wait for processes and time-outs, so two processors can run four tests at once. The first line compiles
# all modules, because the processes of tests write no bytecode. tests/test_house.py runs ruff and mypy.
test: $(INSTALLED)
	$(RUN) -m compileall -q scrapy_dq tests
	$(RUN) -m pytest -m "not soak and not plugins" -n 4 --dist loadfile --durations=15

# Before a commit: linters, types, all tests that start no process, and some examples of the model on one Redis.
check: $(INSTALLED)
	MODEL_EXAMPLES=8 $(RUN) -m pytest -q -m "(unit or redis) and not soak" -n 4 --dist loadgroup \
	tests/unit tests/test_house.py tests/test_release.py tests/frontier/test_model.py

# Keeps the processors busy while other tests run: `make load & make test`. The processes end after SECONDS.
BUSY ?= 6
SECONDS ?= 900
load:
	for _ in $$(seq $(BUSY)); do $(PYTHON) -c "import itertools, time; end = time.monotonic() + $(SECONDS); \
	any(time.monotonic() > end for _ in itertools.count())" & done; wait

# The long forms of the fault tests, and all tests that need a Redis on each other installed version of Redis.
soak: $(INSTALLED)
	$(RUN) -m pytest -m soak --durations=50

# Simulates whole workers with the real Lua scripts in virtual time; a seed chooses the faults: docs/reliability.md.
# ARGS="--help" shows how to run more seeds, and how to repeat one.
simulate: $(INSTALLED)
	PYTHONPATH=tests $(RUN) -m simulation $(ARGS)

# Removes each rule of the protocol and counts the seeds until a check fails; takes about 15 minutes.
simulate-mutations: $(INSTALLED)
	PYTHONPATH=tests $(RUN) -m simulation.mutations $(ARGS)

# Visits every state of a small model of the protocol; takes some minutes, and needs a C++ compiler:
# verification/README.md.
verify: $(INSTALLED)
	$(RUN) verification/verify.py $(ARGS)

# Plugins of other projects, in a separate virtual environment: docs/plugins.md.
plugins: $(INSTALLED_PLUGINS)
	$(PLUGINS)/bin/python -m pytest -m plugins tests/plugins $(ARGS)

# Tests the page of `scrapy dq web` in the system's Chromium, with axe, which needs npm.
browser: $(INSTALLED_BROWSER) .axe/node_modules
	$(RUN) -m pytest tests/commands/test_web_browser.py $(ARGS)

# Makes the pictures of docs/watching.md.
screenshots: $(INSTALLED_BROWSER)
	$(RUN) docs/pictures/page.py

# Counts the pages that a fault loses here, in scrapy-redis, JOBDIR and Crawlee. ARGS="--help" shows the parts.
compare-faults: $(INSTALLED_COMPARE)
	PYTHONPATH=tests $(RUN) -m benchmarks.compare_faults $(ARGS)

# Shows the lines that no test runs, in any process; takes twice as long as `make test`.
coverage: $(INSTALLED_COVERAGE)
	$(RUN) -m coverage erase
	$(RUN) -m coverage run -m pytest -m "not soak and not plugins" -n 4 --dist loadfile $(ARGS)
	$(RUN) -m coverage combine --quiet
	$(RUN) -m coverage report

# Writes docs/performance.md with its plots. Each crawl stops after 20 minutes. ARGS="--help" shows the parts.
bench: $(INSTALLED_BENCH)
	PYTHONPATH=tests $(RUN) -m benchmarks $(ARGS)

# Measures the figures of docs/domains.md; takes about half an hour. Each program has --help.
bench-domains: $(INSTALLED)
	PYTHONPATH=tests $(RUN) -m benchmarks.domains
	PYTHONPATH=tests $(RUN) -m benchmarks.partitions

# Writes the generated parts of the documents, then the site build/docs/index.html. A warning of Sphinx is an error.
docs: $(INSTALLED_DOCS)
	$(DOCS)/bin/python docs/generate.py
	$(DOCS)/bin/python -m sphinx -W --keep-going -q -E -d build/doctrees docs build/docs

lint: $(INSTALLED)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy --strict

# setuptools would also pack the files of an older build.
wheel: $(INSTALLED)
	rm -rf build
	$(RUN) -m pip wheel . --quiet --no-deps --no-build-isolation --wheel-dir dist

clean:
	rm -rf $(VENV) $(PLUGINS) $(DOCS) .axe build dist *.egg-info .tox .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Each environment is made again when the dependencies may have changed. Only pip 21.3 and newer can make editable
# installs from a pyproject.toml; Python 3.10.0 has 21.2.
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
