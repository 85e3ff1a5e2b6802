#include "quant/quantization.h"

#include <charconv>

namespace spate {
namespace {

constexpr int64_t kDefaultInt4Group = 64;
constexpr std::string_view kAllowed =
    "none, int8 or int4, then -g32, -g64, -g128 or -g256 for the group size, then -asym for asymmetric codes or "
    "(int4) -f16scales for scales of groups that are not multiples of one";

bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace

Result<Quantization> parse_quantization(std::string_view text) {
  const auto error = [&] { return invalid_argument("--quantization '{}': use {}", text, kAllowed); };
  // A checkpoint's own layout is read from its files; naming it, as vLLM's users do, changes nothing.
  for (const std::string_view own : {"", "none", "auto", "gptq", "awq", "compressed-tensors", "gguf"}) {
    if (text == own) return Quantization();
  }
  std::string_view rest = text;
  take_prefix(rest, "w");
  Quantization quantization;
  WeightSpec& spec = quantization.linear;
  if (take_prefix(rest, "int8")) {
    spec.codes = Codes::kInt8;
  } else if (take_prefix(rest, "int4")) {
    spec.codes = Codes::kInt4;
    spec.tile.columns = kDefaultInt4Group;
  } else {
    return error();
  }
  if (take_prefix(rest, "-g")) {
    const auto [end, status] = std::from_chars(rest.data(), rest.data() + rest.size(), spec.tile.columns);
    if (status != std::errc()) return error();
    rest.remove_prefix(static_cast<size_t>(end - rest.data()));
    const int64_t g = spec.tile.columns;
    if (g != 32 && g != 64 && g != 128 && g != 256) return error();
  }
  spec.has_offsets = take_prefix(rest, "-asym");
  if (spec.codes == Codes::kInt4 && !spec.has_offsets) spec.two_level = !take_prefix(rest, "-f16scales");
  if (!rest.empty()) return error();
  spec.activations = default_activations(spec);
  quantization.vocabulary = integer_spec(Codes::kInt8);
  return quantization;
}

}  // namespace spate
