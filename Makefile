# Every command works on a fresh machine with Python 3.11: what is missing is installed first.
PYTHON ?= python3
BIN := .venv/bin

ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j2  # the system's packages come while Python's do
endif

# Of Python, besides the one that PYTHON names: the core of the tests runs on each of them
VERSIONS := 3.12 3.13

.PHONY: setup demo test soak agents frameworks chromium sandbox proxies image packages-of-tests requirements tested soaked \
	conformance check check-deploy reference mutants walk bench lock clean $(VERSIONS:%=test-%) $(VERSIONS:%=core-%)

setup: .venv/.run ## the project in .venv: .venv/bin/toolgate is the command

.venv/bin/python:
	@PYTHON=$(PYTHON) .ci/packages python
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Toolgate needs Python 3.11 or later; set PYTHON=…"; exit 1; }
	$(PYTHON) -m venv .venv

# uv takes a tenth of pip's time, where it finds the packages that pip does
INSTALL = $(BIN)/uv pip install -q --python $(2)/python --require-hashes -r $(1) 2>/dev/null \
	|| $(2)/python -m pip install -q --require-hashes -r $(1)

.venv/.run: .venv/bin/python requirements.lock requirements-uv.lock pyproject.toml
	$(BIN)/python -m pip install -q --require-hashes -r requirements-uv.lock
	$(call INSTALL,requirements.lock,$(BIN))
	$(BIN)/python -m pip install -q --no-deps --no-build-isolation -e .
	@touch $@

.venv/.dev: .venv/.run requirements-dev.lock
	$(call INSTALL,requirements-dev.lock,$(BIN))
	@touch $@

node_modules: tests/interop/node_modules/.installed
tests/interop/node_modules/.installed: .venv/.dev tests/interop/package-lock.json
	cd tests/interop && PATH="$(CURDIR)/$(BIN):$$PATH" npm ci --no-audit --no-fund --ignore-scripts --loglevel=error
	@touch $@

# The frameworks of tests/interop/test_frameworks.py: their dependencies exclude each other's, and ours
FRAMEWORKS = $(patsubst tests/interop/frameworks/%.lock,.venv/frameworks/%/.installed,$(wildcard tests/interop/frameworks/*.lock))
frameworks: $(FRAMEWORKS)
.venv/frameworks/%/.installed: tests/interop/frameworks/%.lock | .venv/.run
	$(BIN)/python -m venv --clear --without-pip $(@D)
	$(BIN)/uv pip install -q --python $(@D)/bin/python --require-hashes -r $< 2>/dev/null \
		|| $(BIN)/python -m pip --python $(@D)/bin/python install -q --require-hashes -r $<
	@touch $@

agents: tests/agents/node_modules/.installed ## the agents that `make soak` drives: 1.1 GB
tests/agents/node_modules/.installed: .venv/.dev tests/agents/package-lock.json
	cd tests/agents && PATH="$(CURDIR)/$(BIN):$$PATH" npm ci --no-audit --no-fund --ignore-scripts --loglevel=error
	@touch $@

# Each worker of the tests would rewrite the assertions of all of them
.venv/.rewritten: .venv/.dev
	@-env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest --collect-only -q -p no:xdist >/dev/null
	@touch $@

demo: setup ## the tour: every tool, called for real
	$(BIN)/toolgate demo

chromium sandbox proxies image: | .venv/bin/python ## Debian's packages: browsers, what keeps commands apart, …
	@.ci/packages $@

packages-of-tests: | .venv/bin/python
	@.ci/packages $(GROUPS)

# What an administrator has to install, and which Python is missing: said before anything else takes long
requirements:
	@PYTHON=$(PYTHON) .ci/packages --check $(GROUPS)
	@.ci/find-python $(VERSIONS) >/dev/null

test: GROUPS := python chromium sandbox proxies
test: requirements ## everything, against the real server; the core of it on each Python
	@$(MAKE) --no-print-directory tested GROUPS="$(GROUPS)"

tested: .venv/.dev tests/interop/node_modules/.installed $(FRAMEWORKS) .venv/.rewritten $(VERSIONS:%=.venv-%/.dev) packages-of-tests
	$(BIN)/python -m pytest -n 5 --dist loadfile --no-loadscope-reorder
	@$(MAKE) --no-print-directory $(VERSIONS:%=core-%)

soak: GROUPS := python chromium sandbox proxies image
soak: requirements ## what takes longer than `make test` may, and all tests on each Python
	@$(MAKE) --no-print-directory soaked GROUPS="$(GROUPS)"

soaked: .venv/.dev tests/interop/node_modules/.installed tests/agents/node_modules/.installed $(FRAMEWORKS) packages-of-tests
	$(BIN)/python -m pytest -m soak
	@for version in $(VERSIONS); do $(MAKE) --no-print-directory test-$$version || exit; done

# The protocol, the transports and the tools: what another Python could break, in a minute
CORE := $(addprefix tests/,server/cli/test_cli.py server/workspaces/test_sandboxing.py server/plugins/isolation/test_plugin.py \
	server/calls/test_terminal.py server/protocol/test_protocol.py server/state/backup/test_backup.py \
	server/state/test_store.py server/state/test_migrate.py tools/builtin/test_background.py tools/builtin/test_bash.py \
	tools/builtin/test_callbacks.py tools/builtin/test_contract.py tools/builtin/test_docs.py tools/builtin/test_images.py \
	tools/builtin/test_plan.py tools/builtin/test_skills.py tools/builtin/test_tasks.py tools/workers/test_pool.py \
	transports/http/test_server.py transports/test_matrix.py transports/test_sse.py transports/test_stdio.py \
	transports/test_streamable_http.py transports/http/test_streams.py)
$(VERSIONS:%=core-%): core-%: .venv-%/.dev
	.venv-$*/bin/python -m pytest -n 3 --dist loadfile $(CORE)

$(VERSIONS:%=test-%): test-%: .venv-%/.dev .venv/.dev tests/interop/node_modules/.installed $(FRAMEWORKS)
	.venv-$*/bin/python -m pytest -n 5 --dist loadfile --no-loadscope-reorder

.venv-3.13/.dev: | .venv-3.12/.dev  # each writes beside the sources as it is installed
$(VERSIONS:%=.venv-%/.dev): .venv-%/.dev: requirements-dev.lock pyproject.toml | .venv/.run
	python=$$(.ci/find-python $*) && $$python -m venv $(@D)
	$(call INSTALL,requirements-dev.lock,$(@D)/bin)
	$(@D)/bin/python -m pip install -q --no-deps --no-build-isolation -e .
	@touch $@

conformance: .venv/.dev tests/interop/node_modules/.installed ## the official conformance suite, all of its runs
	$(BIN)/python -m pytest tests/conformance -m ""

check: .venv/.dev ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy .links/toolgate
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright
	@$(MAKE) --no-print-directory check-deploy

# Without a network: the schemas come with the linters. systemd's own is run where it is; 254 knows more than Debian 12's
MANIFESTS = $(filter-out %/kustomization.yaml,$(wildcard deploy/kubernetes/*.yaml))
check-deploy: .venv/.dev ## what runs it elsewhere: image, compose, Kubernetes, systemd
	$(BIN)/hadolint deploy/Dockerfile
	$(BIN)/check-jsonschema -q --builtin-schema vendor.compose-spec deploy/compose.yaml
	$(BIN)/kubernetes-validate --strict --quiet -k 1.33.0 $(MANIFESTS)
	$(BIN)/kubernetes-validate --strict --quiet $(MANIFESTS)
	@mkdir -p build && sed 's|^ExecStart=[^ ]*|ExecStart=/bin/true|' deploy/systemd/toolgate.service >build/toolgate.service
	@cp deploy/systemd/toolgate.socket build
	@! command -v systemd-analyze >/dev/null || ! systemd-analyze verify --man=no build/toolgate.service build/toolgate.socket 2>&1 | grep -v DelegateSubgroup

reference: .venv/.run ## what docs/ say of options, commands and tools, written anew
	$(BIN)/python -m tests.docs.reference

mutants: .venv/.dev ## which changes of a line the tests do not notice: a sample, for hours (MUTANTS="--each 5 server/auth")
	$(BIN)/python -m tests.mutants $(MUTANTS)

walk: .venv/.dev ## the path of a call, traced, and what a reader has to find, counted
	$(BIN)/python -m tests.architecture.walk

bench: .venv/.dev tests/interop/node_modules/.installed ## side by side with the official SDKs
	$(BIN)/python -m tests.bench

LOCK := $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	--no-emit-index-url --no-emit-find-links
lock: .venv/.run ## resolve the dependencies anew: versions and hashes, no addresses
	echo uv | $(LOCK) - -o requirements-uv.lock
	echo 'setuptools>=77' | $(LOCK) --extra browser --extra traces pyproject.toml - -o requirements.lock
	echo 'setuptools>=77' | $(LOCK) --extra browser --extra traces --extra dev pyproject.toml - -c requirements.lock -o requirements-dev.lock
	for each in tests/interop/frameworks/*.in; do $(LOCK) $$each -o $${each%.in}.lock; done
	for folder in interop agents; do (cd tests/$$folder && PATH="$(CURDIR)/$(BIN):$$PATH" npm install --package-lock-only) || exit 1; done

clean:
	rm -rf .venv .venv-* build *.egg-info tests/interop/node_modules tests/agents/node_modules
