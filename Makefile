# make demo    build, serve the bundled model on the CPU, ask it questions over HTTP, end
# make test    build, run every test, close with "N passed, N failed"
# make sanitize   the unit tests under ASan+UBSan and under TSan
# make bench   the table of speeds against their physical limits; writes build/bench.json
# make gpu-test   everything that needs a GPU, on a machine that has one
# make format  clang-format over our sources
JOBS ?= $(shell nproc)

.PHONY: build demo test sanitize bench gpu-test format setup
build: setup
	@cmake --preset release >/dev/null
	@cmake --build build -j$(JOBS)

setup:
	@tools/setup

demo: build
	@tools/demo

test: build
	@tools/run_tests build

sanitize: setup
	@cmake --preset asan >/dev/null && cmake --build build/asan -j$(JOBS) && tools/run_tests build/asan --unit
	@cmake --preset tsan >/dev/null && cmake --build build/tsan -j$(JOBS) && tools/run_tests build/tsan --unit

bench: build
	@bench/run

gpu-test: build
	@tools/gpu_test

format:
	@git ls-files 'src/**/*.cpp' 'src/**/*.h' | xargs clang-format-14 -i
