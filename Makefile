# make demo    build, serve the bundled model on the CPU, ask it questions over HTTP, end
# make test    build, run every test, close with "N passed, N failed"
# make sanitize   the unit tests under ASan+UBSan and under TSan
# make bench   the table of speeds against their physical limits; writes build/bench.json
# make gpu-test   everything that needs a GPU, on a machine that has one
# make arm64   cross-compile spate and its tests for aarch64 into build/arm64
# make test-arm   run them by QEMU at every instruction set of ARM
# make package    build/packages: a Debian package and a Python wheel
# make format  clang-format over our sources
JOBS ?= $(shell nproc)

.PHONY: build demo test sanitize sanitize-build bench gpu-test arm64 test-arm package format setup
build: setup
	@cmake --preset release >/dev/null
	@cmake --build build -j$(JOBS)

setup:
	@tools/setup

demo: build
	@tools/demo

test: build
	@tools/run_tests build

# ASan+UBSan over everything that reads bytes of others or keeps books; TSan over everything that has threads. The conformance and
# golden programs, and rank_test under ASan, take many minutes and are run by hand: tools/run_tests build/asan --unit conformance_test
ASAN_TESTS = base_test core_test quant_test backend_cpu_test parallel_test kv_cache_test scheduler_test batch_test engine_test weights_test gguf_test quantizer_test \
  text_test text_stream_test jinja_test server_test
TSAN_TESTS = parallel_test engine_test rank_test server_test
sanitize-build: setup
	@cmake --preset asan >/dev/null && cmake --build build/asan -j$(JOBS) --target $(ASAN_TESTS)
	@cmake --preset tsan >/dev/null && cmake --build build/tsan -j$(JOBS) --target $(TSAN_TESTS)

sanitize: sanitize-build
	@tools/run_tests build/asan --unit $(ASAN_TESTS)
	@tools/run_tests build/tsan --unit $(TSAN_TESTS)

bench: build
	@bench/run

gpu-test: build
	@tools/gpu_test

ARM_PROGRAMS = spate spate-conformance spate-goldens backend_cpu_test
arm64:
	@tools/setup_arm64
	@cmake --preset arm64 >/dev/null
	@cmake --build build/arm64 -j$(JOBS) --target $(ARM_PROGRAMS)

test-arm: arm64
	@tools/test_arm build/arm64

package: build
	@tools/package build

format:
	@git ls-files 'src/**/*.cpp' 'src/**/*.h' | xargs clang-format-14 -i
