// Which programs a start compiles and loads before the first step. Each says so itself, in a line of the comment at its
// top:
//
//   // WARM       11 s: int4, fast; int8, fast
//
// The seconds that it takes to compile, about, then the uses that launch its kernels, ; between them: a use is words
// that must all hold (use_words). A program without the line is for every use and takes a second. What is not warm is
// loaded at its first launch (KernelModules), so that a wrong line costs time and nothing else.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/kernel_sources.h"

namespace spate::cuda {

struct WarmLine {
  double seconds = 1;
  std::vector<std::vector<std::string>> uses;  // empty: every use
};
Result<WarmLine> parse_warm_line(std::string_view program_text);

// hopper, older: the GPU. fast, deterministic. bf16, f32: activations. heads, head-64, head-128, other-heads,
// bf16-cache, int8-cache; latent, latent-bf16, latent-int8: caches. bf16-weights, int8, int4, int4-g32, codes (any of
// these three), other-codes, experts, expert-bf16, expert-int8, expert-int4, expert-int4-g32: matrices. bench: limits.
// Of a use that is everything: all.
std::set<std::string> use_words(const DeviceUse& use, std::string_view architecture, bool is_deterministic);
std::set<std::string> all_use_words();

// Those of the architecture's programs that the words need, the longest to compile first.
Result<std::vector<std::string_view>> warm_programs(const KernelSources& sources, std::string_view architecture,
                                                    const std::set<std::string>& words);

}  // namespace spate::cuda
