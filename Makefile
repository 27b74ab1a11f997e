# A thin front: CMake does the work, in build/.  `make help` prints this text.
#
#   make             builds what programs run on: the libraries and the command.  As root it installs missing Debian packages,
#                    else it names them.
#   make demo        shows an example and Debian's own RDMA programs, server and client, on this machine
#   make examples    builds examples/ into build/examples
#   make test        builds and runs all tests, within 10 minutes
#   make bench       measures; prints figures beside their limits
#   make soak        runs the tests with long counts, then `make mutants`
#   make mutants     breaks the code in each way that tests/mutants.md lists, and expects a test to notice
#   make install     installs below PREFIX
#   make deb         builds Debian packages into build/deb
#   make dist        writes a tarball into build/dist that runs wherever it is unpacked
#   make far         runs what takes longer than that: packages in clean systems of several Debian releases, analysers, coverage
#   make check       checks layers, format, and the pages that are compared with the code
#   make analyse     has clang-tidy, cppcheck and gcc -fanalyzer read the code; about 5 minutes
#   make coverage    prints how much of the code the tests of one process execute; about 15 minutes
#   make format      runs clang-format over everything
#   make clean       removes build/
#   make help        prints this text
#
#   BUILD=DIR        the build folder (build)
#   PREFIX=DIR       where `make install` installs (/usr/local)
#   DESTDIR=DIR      a folder that `make install` puts before PREFIX, to make a package
#   JOBS=N           how many compilers run at a time (one for each CPU)
#   ARGS="..."       options of bench/run, as in make bench ARGS="--rounds 3 --only PATTERN", and steps of scripts/far
#   CMAKE_ARGS="..." options of cmake, as in make BUILD=build-asan CMAKE_ARGS=-DVB_SANITIZE=address,undefined

BUILD  ?= build
PREFIX ?= /usr/local
JOBS   ?= $(shell nproc)
# A directory that was configured keeps its generator.  Expanded late: deps-build may have installed ninja.
GEN     = $(if $(wildcard $(BUILD)/CMakeCache.txt),,$(if $(shell command -v ninja),-G Ninja))
make    = @cmake --build $(BUILD) -j $(JOBS) --target

all: configure
	$(make) all

configure: deps-build
	@cmake -S . -B $(BUILD) $(GEN) $(CMAKE_ARGS) >$(BUILD).log 2>&1 || { cat $(BUILD).log; exit 1; }

deps-build:
	@mkdir -p $(dir $(BUILD)) && scripts/deps --try build
deps-demo:
	@scripts/deps build demo
deps-test:
	@scripts/deps --try build demo test
deps-analyse:
	@scripts/deps build test analyse
deps-package:
	@scripts/deps build package
deps-far:
	@scripts/deps --try build test package analyse far
deps-bench:
	@scripts/deps --try build demo bench

examples: configure
	$(make) all build-examples
	@echo "examples/README.md says what each does. Run one: $(BUILD)/verbena run -- $(BUILD)/examples/03-events"

demo: deps-demo all
	@scripts/demo $(BUILD)

test: deps-test configure
	$(make) build-tests
	@scripts/test $(BUILD)

soak: deps-test configure
	$(make) build-tests
	@scripts/soak $(BUILD)

mutants: deps-test
	@scripts/mutants

bench: deps-bench configure
	$(make) build-bench
	@bench/run $(BUILD) $(ARGS)

install: all
	@cmake --install "$(BUILD)" --prefix "$(PREFIX)"

deb: deps-package
	@scripts/deb $(BUILD)/deb

dist: all
	@scripts/dist $(BUILD)

far: deps-far
	@scripts/far $(BUILD) $(ARGS)

check:
	@scripts/layers && scripts/format-check && scripts/verbs-doc-check && scripts/memory-doc-check && \
		scripts/calls-check && scripts/errors-doc-check && scripts/waits-doc-check && scripts/version-check && scripts/mutants --check

format:
	@scripts/format-check --fix

analyse: deps-analyse
	@scripts/analyse

coverage: deps-analyse
	@scripts/coverage

clean:
	rm -rf $(BUILD) $(BUILD).log

help:
	@sed -n '3,/^$$/{s/^# \{0,1\}//;p}' Makefile

.PHONY: all configure deps-build deps-demo deps-test deps-analyse deps-bench deps-package deps-far examples demo test soak mutants bench install deb dist far check format analyse coverage clean help
