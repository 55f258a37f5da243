# Everything here starts from a fresh clone: Python >= 3.11, a C compiler and make. Targets make what they need.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BENCH := .venv-bench
CONFORMANCE := .venv-conformance
INTEROP := .venv-interop
DEPLOY := .venv-deploy
KERNELS := $(wildcard decoder/kernels/*.pyx decoder/kernels/*.pxi decoder/kernels/*.h)

# The rooms must never be importable by their bare names from the repository root.
export PYTHONSAFEPATH := 1

define INSTALL
$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Rondel needs Python 3.11 or newer; this is " + sys.version)'
$(PYTHON) -m venv $(VENV)
$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
endef
# $(call INSTALL_EXTRA,venv,extra)
define INSTALL_EXTRA
$(PYTHON) -m venv $(1)
$(1)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[$(2)]'
endef
COMPILE := $(BIN)/python setup.py --quiet build_ext --inplace

.PHONY: help demo
.PHONY: test test-deep test-traced test-transports test-aarch64 test-interop
.PHONY: lint lint-deploy types protos dist clean debug ext .venv
.PHONY: bench-kernels bench-traffic bench-forks bench-rpc bench-restart
.PHONY: crash-test soak fuzz stalled-readers idle-streams simulate overload accuracy endless conformance
.DEFAULT_GOAL := help

help:
	@echo 'make demo     a language model answers a question, its attention computed by a Rondel server'
	@echo 'make test     the test suite'
	@echo 'make test-deep  what takes minutes: 2,000 random lives of a stream in memory and in a file, 100,000 streams, ten minutes of 200, clients of servers that are killed'
	@echo 'make test-traced  the tests of servers and clients with every call traced, over TCP and over unix sockets'
	@echo 'make test-aarch64  the vector primitives and products under emulated NEON'
	@echo 'make test-transports  the tests of servers and clients over TCP, TLS, mTLS and unix sockets'
	@echo 'make test-interop  clients on other gRPC stacks, Node.js and grpclib, against a server (needs node and npm)'
	@echo 'make lint     ruff: rules and formatting'
	@echo 'make lint-deploy  the files of deploy/ before linters of their kinds'
	@echo 'make types    mypy --strict, and stubtest of the compiled modules'
	@echo 'make protos   regenerate the code made from proto/'
	@echo 'make dist     sdist and wheel in dist/, checked'
	@echo 'make bench-kernels  decode attention beside other engines and the bare memory (BENCH_ARGS=--quick)'
	@echo 'make bench-traffic  does its time follow the bytes or the arithmetic?'
	@echo 'make bench-forks  what a thousand continuations of one prompt cost, in bytes and in time'
	@echo 'make bench-rpc  what the service costs over its kernels, beside a server that only echoes'
	@echo 'make bench-restart  how long a start on an arena in a file takes, per GiB (BENCH_ARGS=--gib 4)'
	@echo 'make crash-test  processes killed within every kind of call, and a thousand at any moment: nothing acknowledged may be lost'
	@echo 'make simulate  ten thousand schedules of the server with drops, doubles, delays and kills (SEEDS=1000, SEED=17)'
	@echo 'make overload  three times what a server can do: what it still does, and how soon it refuses the rest'
	@echo 'make soak     ten minutes of 500 streams under load, faults and bad messages, every answer checked (DURATION=600)'
	@echo 'make fuzz     ten minutes of requests that no client should send (DURATION=600; FUZZ_ARGS="--seed S --call N")'
	@echo 'make stalled-readers  what 200 readers who take nothing hold of memory, and of the time of others'
	@echo 'make idle-streams  what 10,000 streams that nobody uses take, and what ten among them notice'
	@echo 'make accuracy  what the cache storage types do to a model (TEXT=FILE; else the LICENSE, a short stand-in)'
	@echo 'make endless   a whole text as one stream with a window and sinks, beside recomputation (TEXT=FILE, an hour)'
	@echo 'make conformance  the Attention cases of the ONNX backend suite, answered by sessions'
	@echo 'make debug    rebuild the kernels with checks on (make ext puts the fast ones back)'
	@echo 'make clean    remove everything that make has made'

# One stamp: a changed pyproject.toml or setup.py installs again, a changed kernel source only compiles.
$(VENV)/.built: pyproject.toml setup.py $(KERNELS)
	$(if $(filter pyproject.toml setup.py,$?),$(INSTALL),$(COMPILE))
	@touch $@

.venv: $(VENV)/.built

demo: .venv
	$(BIN)/rondel model pull smollm2-135m
	$(BIN)/rondel demo

# On two cores; more only disturb one another. Tests that measure time have both to themselves.
test: .venv
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal

# Minutes, not seconds: see the tests marked slow. RONDEL_SOAK_SECONDS=600 is how long the soak lasts.
test-deep: .venv
	$(BIN)/python -m pytest -m slow -s -o faulthandler_timeout=0

# A trace must change nothing.
TRACED := RONDEL_TEST_TRACED=1 OTEL_TRACES_EXPORTER=none
test-traced: .venv
	$(TRACED) $(BIN)/python -m pytest tests/server tests/client
	$(TRACED) $(BIN)/python -m pytest tests/server --transport=unix

# However a server is reached. `make test` has some of these tests on each, and the rest on TCP.
test-transports: .venv
	for name in tcp tls mtls unix; do \
	  $(BIN)/python -m pytest tests/server tests/client --numprocesses 2 --dist worksteal --transport=$$name || exit 1; \
	done

# The kernels' C under NEON, emulated: needs Debian's gcc-aarch64-linux-gnu and qemu-user, nothing of ours.
# (gcc 12 for AArch64 breaks down over vectorising the test's own scalar loops.)
test-aarch64:
	mkdir -p build
	for name in primitives products softmax; do \
	  aarch64-linux-gnu-gcc -std=gnu11 -O2 -fno-tree-vectorize -ffp-contract=off -static -Idecoder/kernels tests/native/$$name.c \
	    -lm -o build/$$name-aarch64 && qemu-aarch64 build/$$name-aarch64 || exit 1; \
	done

# grpclib lives without grpcio and without Rondel, on code that its own plugin makes of the protos; the packages for
# Node.js are those of the lockfile, and none of their install scripts runs.
$(INTEROP)/.built: tests/interop/requirements.txt
	$(PYTHON) -m venv $(INTEROP)
	$(INTEROP)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

build/interop/.built: $(INTEROP)/.built $(wildcard proto/rondel/v1/*.proto) | .venv
	rm -rf build/interop && mkdir -p build/interop
	$(BIN)/python -m grpc_tools.protoc -Iproto --plugin=$(INTEROP)/bin/protoc-gen-grpclib_python \
	  --python_out=build/interop --grpclib_python_out=build/interop proto/rondel/v1/*.proto
	@touch $@

tests/interop/node_modules/.built: tests/interop/package-lock.json
	@command -v node >/dev/null && command -v npm >/dev/null || { \
	  echo 'make test-interop needs Node.js 18 or newer with npm, and this machine has none.' >&2; exit 1; }
	cd tests/interop && npm ci --ignore-scripts
	@touch $@

test-interop: .venv build/interop/.built tests/interop/node_modules/.built
	$(BIN)/python -m pytest -m interop tests/interop $(INTEROP_ARGS)

lint: .venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Linters of 160 MB live apart.
$(DEPLOY)/.built: deploy/requirements.txt
	$(PYTHON) -m venv $(DEPLOY)
	$(DEPLOY)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

lint-deploy: $(DEPLOY)/.built
	$(DEPLOY)/bin/python scripts/check_deploy.py --prove

types: .venv
	$(BIN)/mypy
	MYPYPATH=benchmarks $(BIN)/mypy benchmarks
	MYPYPATH=conformance $(BIN)/mypy conformance
	$(BIN)/python scripts/check_stubs.py

protos: .venv
	$(BIN)/python scripts/gen_protos.py

dist: .venv
	$(BIN)/python scripts/check_dist.py

# The other engines live in an environment of their own; the compiled kernels are the source tree's.
$(BENCH)/.built: pyproject.toml setup.py
	$(call INSTALL_EXTRA,$(BENCH),bench)
	@touch $@

bench-kernels: $(BENCH)/.built .venv
	PYTHONPATH=benchmarks $(BENCH)/bin/python benchmarks/kernels.py $(BENCH_ARGS)

bench-traffic: .venv
	PYTHONPATH=benchmarks $(BIN)/python benchmarks/traffic.py $(BENCH_ARGS)

bench-forks: .venv
	PYTHONPATH=benchmarks $(BIN)/python benchmarks/forks.py $(BENCH_ARGS)

bench-rpc: .venv
	PYTHONPATH=benchmarks $(BIN)/python benchmarks/rpc.py $(BENCH_ARGS)

bench-restart: .venv
	PYTHONPATH=benchmarks $(BIN)/python benchmarks/restart.py $(BENCH_ARGS)

crash-test: .venv
	PYTHONPATH=tests/decoder $(BIN)/python tests/decoder/crash_run.py $(CRASH_ARGS)

SEEDS = 10000
simulate: .venv
	PYTHONPATH=tests/simulation $(BIN)/python tests/simulation/sim_run.py $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))

# The server has the first core, the generator the second: two cores, and nothing else at work on them.
overload: .venv
	PYTHONPATH=benchmarks $(BIN)/python benchmarks/overload.py $(OVERLOAD_ARGS)

# Seconds.
DURATION = 600
soak fuzz stalled-readers idle-streams: export PYTHONPATH = tests/endurance:tests/support
soak: .venv
	$(BIN)/python tests/endurance/soak_run.py --duration $(DURATION) $(SOAK_ARGS)

fuzz: .venv
	$(BIN)/python tests/endurance/fuzz_run.py --duration $(DURATION) $(FUZZ_ARGS)

stalled-readers: .venv
	$(BIN)/python tests/endurance/stalled_run.py $(STALLED_ARGS)

idle-streams: .venv
	$(BIN)/python tests/endurance/idle_run.py $(IDLE_ARGS)

# Any plain text will do (TEXT=FILE, 8 contexts of 1024 tokens). The one text that every clone has is short and
# no prose: its two contexts show that all works, and twice the divergence of a novel.
TEXT = LICENSE
CHUNKS = $(if $(filter LICENSE,$(TEXT)),2,8)
accuracy: .venv
	$(BIN)/rondel model pull smollm2-135m
	$(BIN)/rondel accuracy --text '$(TEXT)' --chunks $(CHUNKS) $(ACCURACY_ARGS)

# The text must be longer than window and sinks, 1,024 tokens together; the LICENSE shows that all works.
endless: .venv
	$(BIN)/rondel model pull smollm2-135m
	$(BIN)/rondel endless --text '$(TEXT)' $(ENDLESS_ARGS)

# onnx has an environment of its own too: it is no dependency of ours.
$(CONFORMANCE)/.built: pyproject.toml setup.py
	$(call INSTALL_EXTRA,$(CONFORMANCE),conformance)
	@touch $@

conformance: $(CONFORMANCE)/.built .venv
	PYTHONPATH=conformance $(CONFORMANCE)/bin/python conformance/run.py $(CONFORMANCE_ARGS)

debug: .venv
	RONDEL_DEBUG=1 $(COMPILE)

ext: .venv
	$(COMPILE)

clean:
	rm -rf $(VENV) $(BENCH) $(CONFORMANCE) $(INTEROP) $(DEPLOY) tests/interop/node_modules benchmarks/out build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find benchmarks client conformance decoder server proto scripts tests \( -name __pycache__ -o -name '*.so' \) -prune -exec rm -rf {} +
