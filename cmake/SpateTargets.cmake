# Compile flags and the three kinds of target: spate_library (one a folder), spate_test, spate_program.

find_program(SPATE_CCACHE ccache)
if(SPATE_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${SPATE_CCACHE})
endif()
find_program(SPATE_MOLD mold)
if(SPATE_MOLD AND NOT CMAKE_CROSSCOMPILING)  # a cross compiler looks for one of its own
  add_link_options(-fuse-ld=mold)
endif()

# The baseline of everything but the CPU kernels, which are built once per instruction set and chosen at run time. char has a
# sign on every machine.
if(CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
  set(SPATE_BASELINE -march=armv8-a -fsigned-char)
else()
  set(SPATE_BASELINE -march=x86-64-v3)
endif()
# Contraction stays off: a*b+c must give the same bits in every folder that computes it.
add_compile_options(${SPATE_BASELINE} -ffp-contract=off -Wall -Wextra -Wpedantic -Wshadow -Werror
                    $<$<CXX_COMPILER_ID:GNU>:-Wno-missing-field-initializers>
                    $<$<CXX_COMPILER_ID:Clang>:-Wno-missing-field-initializers>)
# GCC looks for garbage in its own memory from here (KiB) on, not from 128 MiB on: a tenth of the time, and the same code.
add_compile_options($<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=524288>)
string(REPLACE "-O3" "-O2" CMAKE_CXX_FLAGS_RELEASE "${CMAKE_CXX_FLAGS_RELEASE}")
# For what -O2 does not vectorise: loops of unknown length.
set(SPATE_VECTORISE -O3)
if(SPATE_SANITIZE)
  # Without optimisation ASan and UBSan compile in half the time, the CPU's kernels in a sixteenth. Most of their tests run little
  # longer; rank_test, which spends its time in those kernels, is left out (Makefile). TSan's tests take longest as it is, and fuzzers
  # run for hours: both keep -O1. A check of each pointer before each access doubles the time to compile. A
  # null pointer ends a program anyway; the fuzzers, which read the bytes of others, keep these checks. GCC cannot follow simdjson's
  # results through the checks that remain.
  if(SPATE_FUZZERS OR SPATE_SANITIZE STREQUAL "thread")
    set(sanitized_level -O1)
  else()
    set(sanitized_level -O0)
    set(SPATE_VECTORISE "")
  endif()
  add_compile_options(-fsanitize=${SPATE_SANITIZE} -fno-omit-frame-pointer -g1 ${sanitized_level}
                      $<$<CXX_COMPILER_ID:GNU>:-fno-sanitize=null,alignment,object-size,vptr>
                      $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  add_link_options(-fsanitize=${SPATE_SANITIZE})
endif()

# All sources of a library or a test are one translation unit, of cli/ two, since most of a unit is headers and templates: 37 sources
# of cli/ take 44 CPU seconds as one, 88 eight at a time. So the names of unnamed namespaces are unique among a target's sources.
# -DCMAKE_UNITY_BUILD=OFF compiles less after an edit.
set(CMAKE_UNITY_BUILD ON CACHE BOOL "several sources in one translation unit")
set(CMAKE_UNITY_BUILD_BATCH_SIZE 0)

# spate_library(folder SOURCES a.cpp ... DEPS other_folder fmt::fmt ...)
function(spate_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(spate_${name} STATIC ${ARG_SOURCES})
  target_include_directories(spate_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(spate_${name} PUBLIC ${ARG_DEPS})
endfunction()

# spate_test(name SOURCES x_test.cpp ... DEPS spate_x ...): one doctest program, run from the repository root.
function(spate_test name)
  if(NOT SPATE_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${DOCTEST_INCLUDE})
  target_compile_options(${name} PRIVATE -O0)  # half the time to compile; what takes long to run is in libraries
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} spate_test_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/test)
  set_property(GLOBAL APPEND PROPERTY SPATE_TEST_PROGRAMS ${name})
endfunction()

# spate_program(name SOURCES ... DEPS ...): an executable at the top of the build folder.
function(spate_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
endfunction()

# spate_fuzzer(name SOURCES ... DEPS ...): a libFuzzer program; built only with clang and SPATE_FUZZERS.
function(spate_fuzzer name)
  if(NOT SPATE_FUZZERS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fuzz)
endfunction()
