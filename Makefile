# Every command works on a fresh machine with Python 3.11: it installs missing packages first.
PYTHON ?= python3
BIN := .venv/bin

ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j2  # installs system packages and Python packages at the same time
endif

# Further versions of Python: the core tests run on each
VERSIONS := 3.12 3.13

.PHONY: setup demo test soak agents frameworks peers chromium sandbox proxies utilities image packages-of-tests requirements tested soaked benched lowest \
	conformance help check check-deploy reference pictures mutants fuzz walk bench lock clean $(VERSIONS:%=test-%) $(VERSIONS:%=core-%)

setup: .venv/.run ## install the project into .venv; the command is .venv/bin/toolgate

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z][a-z -]*:.*## / {printf "%-32s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.venv/bin/python:
	@PYTHON=$(PYTHON) .ci/packages python
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Toolgate needs Python 3.11 or later; set PYTHON=…"; exit 1; }
	$(PYTHON) -m venv .venv

# uv takes a tenth of pip's time, but does not find every package that pip finds, and compiles only if asked to
INSTALL = $(BIN)/uv pip install -q $(3) --python $(2)/python --require-hashes -r $(1) 2>/dev/null \
	|| $(2)/python -m pip install -q --require-hashes -r $(1)

# The distribution was called toolgate until 0.1.0. Two would own the same files, and removing one would break the other
REPLACE_FORMER = if ls $(1)/lib/python3*/site-packages/toolgate-*.dist-info >/dev/null 2>&1; then $(1)/bin/python -m pip uninstall -q -y toolgate; fi; \
	rm -rf toolgate.egg-info

.venv/.run: .venv/bin/python requirements.lock requirements-uv.lock pyproject.toml
	$(BIN)/python -m pip install -q --require-hashes -r requirements-uv.lock
	$(call INSTALL,requirements.lock,$(BIN),--compile-bytecode)
	@$(call REPLACE_FORMER,.venv)
	$(BIN)/python -m pip install -q --no-deps --no-build-isolation -e .
	@$(BIN)/python -m compileall -q server tools transports  # the users of the command may be unable to write here
	@touch $@

.venv/.dev: .venv/.run requirements-dev.lock
	$(call INSTALL,requirements-dev.lock,$(BIN))
	@touch $@

node_modules: tests/interop/node_modules/.installed
tests/interop/node_modules/.installed: .venv/.dev tests/interop/package-lock.json
	cd tests/interop && PATH="$(CURDIR)/$(BIN):$$PATH" npm ci --no-audit --no-fund --ignore-scripts --loglevel=error
	@touch $@

# The frameworks of tests/interop/test_frameworks.py: their dependencies conflict with each other and with Toolgate's
FRAMEWORKS = $(patsubst tests/interop/frameworks/%.lock,.venv/frameworks/%/.installed,$(wildcard tests/interop/frameworks/*.lock))
frameworks: $(FRAMEWORKS)
.venv/frameworks/%/.installed: tests/interop/frameworks/%.lock | .venv/.run
	$(BIN)/python -m venv --clear --without-pip $(@D)
	$(BIN)/uv pip install -q --python $(@D)/bin/python --require-hashes -r $< 2>/dev/null \
		|| $(BIN)/python -m pip --python $(@D)/bin/python install -q --require-hashes -r $<
	@touch $@

# The servers and the tokenizer of the session that is measured, and a reader of pages (tests/bench/session, tests/bench/gold)
PEERS = tests/bench/peers/node_modules/.installed $(patsubst tests/bench/peers/%.lock,.venv/peers/%/.installed,$(wildcard tests/bench/peers/*.lock))
peers: $(PEERS) ## install the programs that `make bench` compares with (650 MB)
tests/bench/peers/node_modules/.installed: .venv/.dev tests/bench/peers/package-lock.json
	cd tests/bench/peers && PATH="$(CURDIR)/$(BIN):$$PATH" npm ci --no-audit --no-fund --ignore-scripts --loglevel=error
	@touch $@
.venv/peers/%/.installed: tests/bench/peers/%.lock | .venv/.run
	$(BIN)/python -m venv --clear --without-pip $(@D)
	$(BIN)/uv pip install -q --python $(@D)/bin/python --require-hashes -r $< 2>/dev/null \
		|| $(BIN)/python -m pip --python $(@D)/bin/python install -q --require-hashes -r $<
	@touch $@

agents: tests/agents/node_modules/.installed ## install the agents that `make soak` runs (1.1 GB)
tests/agents/node_modules/.installed: .venv/.dev tests/agents/package-lock.json
	cd tests/agents && PATH="$(CURDIR)/$(BIN):$$PATH" npm ci --no-audit --no-fund --ignore-scripts --loglevel=error
	@touch $@

# Rewrite pytest's assertions once, instead of in each worker
.venv/.rewritten: .venv/.dev
	@-env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest --collect-only -q -p no:xdist >/dev/null
	@touch $@

demo: setup ## run the tour: call every tool
	$(BIN)/toolgate demo

chromium sandbox proxies utilities image: | .venv/bin/python ## install Debian packages that tests need
	@.ci/packages $@

packages-of-tests: | .venv/bin/python
	@.ci/packages $(GROUPS)

# List what an administrator has to install, and missing versions of Python, before slow work starts
requirements:
	@PYTHON=$(PYTHON) .ci/packages --check $(GROUPS)
	@.ci/find-python $(VERSIONS) >/dev/null

test: GROUPS := python chromium sandbox proxies utilities
test: requirements ## run all tests against the real server; the core tests on each Python
	@$(MAKE) --no-print-directory tested GROUPS="$(GROUPS)"

tested: .venv/.dev tests/interop/node_modules/.installed $(patsubst %,.venv/frameworks/%/.installed,mcp2 servers) .venv/.rewritten $(VERSIONS:%=.venv-%/.dev) packages-of-tests
	@$(MAKE) --no-print-directory -j2 suite cores

TESTED := .ci/run-tests
suite: .venv/.dev
	$(TESTED) $(BIN)/python -m pytest -n 8 --dist loadfile --no-loadscope-reorder

# Each version runs a part of the core tests, and all of them together run each test
cores: ; @part=0; for version in $(VERSIONS); do part=$$((part + 1)); \
	$(MAKE) --no-print-directory core-$$version PART=--part=$$part/$(words $(VERSIONS)) || exit; done

soak: GROUPS := python chromium sandbox proxies utilities image
soak: requirements ## run the slow tests, and all tests on each Python
	@$(MAKE) --no-print-directory soaked GROUPS="$(GROUPS)"

# Agents give up on a server that starts slowly, and the others measure: these have the machine for themselves
ALONE := tests/agents tests/bench tests/soak
soaked: .venv/.dev tests/interop/node_modules/.installed tests/agents/node_modules/.installed $(FRAMEWORKS) $(PEERS) packages-of-tests
	$(TESTED) $(BIN)/python -m pytest -m soak -n 2 --dist loadfile --no-loadscope-reorder $(ALONE:%=--ignore=%)
	$(TESTED) $(BIN)/python -m pytest -m soak $(ALONE)
	$(BIN)/python -m tests.bench --check --rounds 2
	@for version in $(VERSIONS); do $(MAKE) --no-print-directory test-$$version || exit; done

# The core tests: what a version of Python may change. The soak runs all tests on each
CORE := $(addprefix tests/,server/workspaces/test_sandboxing.py server/features/mounts/plugins/test_plugin.py \
	server/calls/test_terminal.py server/protocol/test_protocol.py \
	server/state/sqlite/test_store.py server/state/sqlite/test_upgrade.py \
	tools/builtin/test_background.py tools/builtin/test_bash.py tools/builtin/test_contract.py \
	transports/http/test_server.py transports/test_matrix.py transports/test_sse.py transports/test_stdio.py \
	transports/test_streamable_http.py)
$(VERSIONS:%=core-%): core-%: .venv-%/.dev
	$(TESTED) .venv-$*/bin/python -m pytest $(PART) $(CORE)

$(VERSIONS:%=test-%): test-%: .venv-%/.dev .venv/.dev tests/interop/node_modules/.installed $(FRAMEWORKS)
	$(TESTED) .venv-$*/bin/python -m pytest -n 8 --dist loadfile --no-loadscope-reorder

.venv-3.13/.dev: | .venv-3.12/.dev  # one after the other: each writes into the source tree
$(VERSIONS:%=.venv-%/.dev): .venv-%/.dev: requirements-dev.lock pyproject.toml | .venv/.run
	python=$$(.ci/find-python $*) && $$python -m venv $(@D)
	$(call INSTALL,requirements-dev.lock,$(@D)/bin)
	@$(call REPLACE_FORMER,$(@D))
	$(@D)/bin/python -m pip install -q --no-deps --no-build-isolation -e .
	@touch $@

# Each dependency in the lowest version that pyproject.toml allows; what these need, and the tools, in newer ones
.venv-lowest/.dev: requirements-dev.lock pyproject.toml | .venv/.dev
	$(BIN)/python -m venv --clear $(@D)
	@rm -rf build/lowest && mkdir -p build/lowest
	$(BIN)/uv pip compile -q --resolution lowest-direct --python $(@D)/bin/python --no-header --no-annotate --no-emit-index-url \
		--no-emit-find-links --extra browser --extra traces --extra replicas --extra blog-search pyproject.toml -o build/lowest/floors.txt
	@sed 's/==.*/==/; s/^/^/' build/lowest/floors.txt >build/lowest/names
	@grep '^[a-z]' requirements-dev.lock | grep -v -f build/lowest/names | sed 's/ \\$$//' >build/lowest/tools.txt
	$(BIN)/uv pip install -q --no-deps --python $(@D)/bin/python -r build/lowest/floors.txt -r build/lowest/tools.txt
	$(@D)/bin/python -m pip install -q --no-deps --no-build-isolation -e .
	@touch $@

TESTS :=
lowest: .venv-lowest/.dev tests/interop/node_modules/.installed $(FRAMEWORKS) ## run tests on the lowest versions of dependencies (TESTS=tests/server/state)
	.venv-lowest/bin/python -m pytest -n 5 --dist loadfile --no-loadscope-reorder $(TESTS)

conformance: .venv/.dev tests/interop/node_modules/.installed ## run the whole official conformance suite
	$(BIN)/python -m pytest tests/conformance -m ""

check: .venv/.dev ## check format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy .links/toolgate plugins
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright -p tests
	@$(MAKE) --no-print-directory check-deploy

# Needs no network: the linters include the schemas. systemd's own check runs if it is installed; Debian 12's lacks keys of 254
MANIFESTS = $(filter-out %/kustomization.yaml,$(wildcard deploy/kubernetes/*.yaml)) deploy/kubernetes-gateway/networkpolicy.yaml \
	deploy/kubernetes-nodes/statefulset.yaml deploy/kubernetes-nodes/service.yaml \
	$(patsubst %,deploy/kubernetes-replicas/%.yaml,autoscaler disruptionbudget networkpolicy)
check-deploy: .venv/.dev ## check deploy/: image, compose, Kubernetes, systemd
	$(BIN)/hadolint deploy/Dockerfile
	$(BIN)/check-jsonschema -q --builtin-schema vendor.compose-spec deploy/compose.yaml deploy/compose.node.yaml \
		deploy/compose.scale.yaml
	$(BIN)/kubernetes-validate --strict --quiet -k 1.33.0 $(MANIFESTS)
	$(BIN)/kubernetes-validate --strict --quiet $(MANIFESTS)
	@rm -rf build/units && mkdir -p build/units build/units/gateway/toolgate.service.d
	@cp deploy/systemd/toolgate.socket build/units && cp deploy/systemd/toolgate.socket build/units/gateway
	@for unit in toolgate toolgate-node gateway/toolgate; do \
		sed 's|^ExecStart=[^ ]*|ExecStart=/bin/true|' deploy/systemd/$${unit#gateway/}.service >build/units/$$unit.service; done
	@cp deploy/systemd/toolgate-gateway.conf build/units/gateway/toolgate.service.d
	@! command -v systemd-analyze >/dev/null || ! for units in "toolgate.service toolgate.socket" toolgate-node.service gateway/toolgate.service; do \
		(cd build/units && systemd-analyze verify --man=no $$units); done 2>&1 | grep -v DelegateSubgroup
	@! command -v systemd-analyze >/dev/null || for unit in "--threshold=45 toolgate-node" "--threshold=25 gateway/toolgate"; do \
		(cd build/units && systemd-analyze security --no-pager --offline=true $$unit.service >security 2>&1) || { cat build/units/security; exit 1; }; done

reference: .venv/.run ## generate the tables of options, commands and tools in docs/
	$(BIN)/python -m tests.docs.reference

pictures: .venv/.dev ## make the pictures of the pages and the terminal in docs/pictures again
	$(BIN)/python -m tests.transports.web.screens
	$(BIN)/python -m tests.server.cli.terminal_pictures

mutants: .venv/.dev ## find changed lines that no test notices; takes hours (MUTANTS="--each 5 server/auth")
	$(BIN)/python -m tests.mutants $(MUTANTS)

# Atheris and its bytecode are for one version of Python. It sees the packages of .venv
.venv-fuzz/.installed: tests/fuzz/atheris.lock | .venv/.dev
	$(BIN)/python -m venv --clear .venv-fuzz
	$(call INSTALL,$<,.venv-fuzz/bin)
	@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		>"$$(.venv-fuzz/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/project.pth"
	@touch $@

FUZZ := -max_total_time=3600
fuzz: .venv-fuzz/.installed ## fuzz the HTTP connection for an hour (FUZZ=-max_total_time=60)
	.venv-fuzz/bin/python -m tests.fuzz $(FUZZ)

walk: .venv/.dev ## trace the path of a call, and count what a reader has to look up
	$(BIN)/python -m tests.architecture.walk

bench: GROUPS := python chromium sandbox proxies utilities
bench: VERSIONS :=
bench: requirements ## compare the speed with the official SDKs
	@$(MAKE) --no-print-directory benched GROUPS="$(GROUPS)"

benched: .venv/.dev tests/interop/node_modules/.installed $(PEERS) packages-of-tests
	$(BIN)/python -m tests.bench

LOCK := $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	--no-emit-index-url --no-emit-find-links
lock: .venv/.run ## resolve the dependencies again: versions and hashes, no addresses
	echo uv | $(LOCK) - -o requirements-uv.lock
	echo 'setuptools>=77' | $(LOCK) --extra browser --extra traces --extra replicas pyproject.toml - -o requirements.lock
	echo 'setuptools>=77' | $(LOCK) --extra browser --extra traces --extra replicas --extra dev pyproject.toml - -c requirements.lock -o requirements-dev.lock
	for each in tests/interop/frameworks/*.in tests/bench/peers/*.in tests/fuzz/*.in; do $(LOCK) $$each -o $${each%.in}.lock; done
	for folder in interop agents bench/peers; do (cd tests/$$folder && PATH="$(CURDIR)/$(BIN):$$PATH" npm install --package-lock-only) || exit 1; done

clean: ## remove what make has installed or built
	rm -rf .venv .venv-* build *.egg-info tests/interop/node_modules tests/agents/node_modules tests/bench/peers/node_modules
