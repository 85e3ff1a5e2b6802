// The scanners behind SplitMatcher: each returns the end of the match that begins exactly at `pos`, or `pos` when
// none begins there (only the DeepSeek-V3 pattern leaves such gaps). They follow the alternatives of their pattern
// in order; the reason for each step is written in split_scanners.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace spate {

size_t scan_gpt2(const uint8_t* classes, std::string_view text, size_t pos);
// max_digits 3 for Llama 3 and cl100k, 1 for Qwen2.
size_t scan_llama3(const uint8_t* classes, std::string_view text, size_t pos, size_t max_digits);
size_t scan_deepseek_v3(const uint8_t* classes, std::string_view text, size_t pos);

}  // namespace spate
