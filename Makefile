# A thin front: CMake does the work, in build/.
#
#   make             builds; installs missing Debian packages where it may, names them where it may not
#   make demo        Debian's own RDMA programs, server and client, on this machine
#   make test        all tests, within 10 minutes
#   make soak        the same with long counts
#   make mutants     breaks the code in every way that tests/mutants.md lists, and expects a test to notice
#   make bench       figures beside their limits; ARGS="--rounds 3 --only PATTERN"
#   make install     PREFIX=/usr/local
#   make check       layers, format, the tables of verbs, memory registration, errors and mutants
#   make format      clang-format over everything
#   make clean       removes build/

BUILD  ?= build
PREFIX ?= /usr/local
JOBS   ?= $(shell nproc)
# A directory that was configured keeps its generator.
GEN    := $(if $(wildcard $(BUILD)/CMakeCache.txt),,$(if $(shell command -v ninja),-G Ninja))

all: deps-build
	@cmake -S . -B $(BUILD) $(GEN) $(CMAKE_ARGS) >$(BUILD).log 2>&1 || { cat $(BUILD).log; exit 1; }
	@cmake --build $(BUILD) -j $(JOBS)

deps-build:
	@mkdir -p $(dir $(BUILD)) && scripts/deps --try build
deps-demo:
	@scripts/deps build demo
deps-test:
	@scripts/deps --try build demo test
deps-bench:
	@scripts/deps --try build demo bench

demo: deps-demo all
	@scripts/demo $(BUILD)

test: deps-test all
	@scripts/test $(BUILD)

soak: deps-test all
	@scripts/soak $(BUILD)

mutants: deps-test
	@scripts/mutants

bench: deps-bench all
	@bench/run $(BUILD) $(ARGS)

install: all
	@cmake --install $(BUILD) --prefix $(PREFIX)

check:
	@scripts/layers && scripts/format-check && scripts/verbs-doc-check && scripts/memory-doc-check && \
		scripts/calls-check && scripts/errors-doc-check && scripts/mutants --check

format:
	@scripts/format-check --fix

clean:
	rm -rf $(BUILD) $(BUILD).log

.PHONY: all deps-build deps-demo deps-test deps-bench demo test soak mutants bench install check format clean
