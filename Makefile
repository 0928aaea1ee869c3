# Every command works on a fresh machine with Python 3.11: what is missing is installed first.
PYTHON ?= python3
BIN := .venv/bin

MAKEFLAGS += -j2  # the system's packages come while Python's do

.PHONY: setup demo test soak frameworks chromium sandbox proxies image conformance check check-deploy reference bench lock clean

setup: .venv/.run ## the project in .venv: .venv/bin/toolgate is the command

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Toolgate needs Python 3.11 or later; set PYTHON=…"; exit 1; }
	@command -v bash >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -q && apt-get install -qy bash; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -q && apt-get install -qy python3-venv; } \
		|| { echo "Python's venv is missing: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv .venv

# uv takes a tenth of pip's time, where it finds the packages that pip does
INSTALL = $(BIN)/uv pip install -q --python $(BIN)/python --require-hashes -r $(1) 2>/dev/null \
	|| $(BIN)/python -m pip install -q --require-hashes -r $(1)

.venv/.run: .venv/bin/python requirements.lock requirements-uv.lock pyproject.toml
	$(BIN)/python -m pip install -q --require-hashes -r requirements-uv.lock
	$(call INSTALL,requirements.lock)
	$(BIN)/python -m pip install -q --no-deps --no-build-isolation -e .
	@touch $@

.venv/.dev: .venv/.run requirements-dev.lock
	$(call INSTALL,requirements-dev.lock)
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

# Each worker of the tests would rewrite the assertions of all of them
.venv/.rewritten: .venv/.dev
	@-env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest --collect-only -q -p no:xdist >/dev/null
	@touch $@

demo: setup ## the tour: every tool, called for real
	$(BIN)/toolgate demo

chromium: | .venv/bin/python ## the browsers that the tests of pages drive: Debian's
	@command -v chromium >/dev/null && command -v chromium-headless-shell >/dev/null \
		|| { [ "$$(id -u)" = 0 ] && apt-get update -q && apt-get install -qy --no-install-recommends chromium chromium-headless-shell; } \
		|| { echo "Chromium is missing: apt-get install chromium chromium-headless-shell"; exit 1; }

sandbox: | chromium ## what keeps commands apart, and what the tests of that use
	@command -v bwrap >/dev/null && command -v setpriv >/dev/null && command -v tini >/dev/null && test -x /usr/bin/python3 && ldconfig -p | grep -q libseccomp.so.2 \
		|| { [ "$$(id -u)" = 0 ] && apt-get update -q && apt-get install -qy --no-install-recommends bubblewrap libseccomp2 util-linux python3 tini; } \
		|| { echo "The sandbox is missing: apt-get install bubblewrap libseccomp2 util-linux python3 tini"; exit 1; }

image: | sandbox ## what builds the container's image without an engine, and a systemd to run the unit under
	@command -v debootstrap >/dev/null && test -x /lib/systemd/systemd \
		|| { [ "$$(id -u)" = 0 ] && apt-get update -q && apt-get install -qy --no-install-recommends debootstrap systemd; } \
		|| { echo "What builds images is missing: apt-get install debootstrap systemd"; exit 1; }

# The packages start services, which take port 80: of those that come just now they are ended.
proxies: | sandbox ## the proxies that the tests put in front, and what speaks HTTP/2 to them
	@PATH="$$PATH:/usr/sbin"; command -v caddy >/dev/null && command -v nginx >/dev/null && command -v curl >/dev/null \
		|| { [ "$$(id -u)" = 0 ] && apt-get update -q && new=$$(for one in caddy nginx; do command -v $$one >/dev/null || echo $$one; done) \
			&& apt-get install -qy --no-install-recommends caddy nginx-light curl \
			&& for one in $$new; do systemctl disable -q --now $$one 2>/dev/null || service $$one stop >/dev/null 2>&1 || :; done; } \
		|| { echo "The proxies are missing: apt-get install caddy nginx-light curl"; exit 1; }

test: .venv/.dev tests/interop/node_modules/.installed $(FRAMEWORKS) .venv/.rewritten chromium sandbox proxies ## everything, against the real server
	$(BIN)/python -m pytest -n 5 --dist loadfile --no-loadscope-reorder

soak: .venv/.dev tests/interop/node_modules/.installed $(FRAMEWORKS) chromium sandbox proxies image ## what takes longer than `make test` may
	$(BIN)/python -m pytest -m soak

conformance: .venv/.dev tests/interop/node_modules/.installed ## the official conformance suite, all of its runs
	$(BIN)/python -m pytest tests/conformance -m ""

check: .venv/.dev ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy .links/toolgate
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright -p .links
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

bench: .venv/.dev tests/interop/node_modules/.installed ## side by side with the official SDKs
	$(BIN)/python -m tests.bench

LOCK := $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	--no-emit-index-url --no-emit-find-links
lock: .venv/.run ## resolve the dependencies anew: versions and hashes, no addresses
	echo uv | $(LOCK) - -o requirements-uv.lock
	echo 'setuptools>=77' | $(LOCK) --extra browser --extra traces pyproject.toml - -o requirements.lock
	echo 'setuptools>=77' | $(LOCK) --extra browser --extra traces --extra dev pyproject.toml - -c requirements.lock -o requirements-dev.lock
	for each in tests/interop/frameworks/*.in; do $(LOCK) $$each -o $${each%.in}.lock; done
	cd tests/interop && PATH="$(CURDIR)/$(BIN):$$PATH" npm install --package-lock-only

clean:
	rm -rf .venv build *.egg-info tests/interop/node_modules
