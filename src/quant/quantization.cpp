#include "quant/quantization.h"

#include <charconv>

namespace spate {
namespace {

constexpr int64_t kDefaultInt4Group = 64;
constexpr std::string_view kAllowed =
    "none, int8 or int4, then -g32, -g64, -g128 or -g256 for the group size, then -asym for asymmetric codes or "
    "(int4) -f16scales for scales of groups that are not multiples of one, then -a16 for activations as they are";

bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace

Result<ActivationDType> parse_activation_dtype(std::string_view text) {
  if (text == "auto") return ActivationDType::kAuto;
  if (text == "model") return ActivationDType::kModel;
  if (text == "int8") return ActivationDType::kInt8;
  return invalid_argument("--activation-dtype '{}': use auto, model or int8", text);
}

WeightSpec Quantization::with_activations(const WeightSpec& spec) const {
  if (!spec.has_integer_codes() || activations == ActivationDType::kAuto) return spec;
  const bool stay = activations == ActivationDType::kModel;
  return spec.with_activations(stay ? Activations::kAsIs : default_activations(spec));
}

WeightSpec runnable_spec(const WeightSpec& wanted, const WeightSpec& plain, const WeightSupport& supports) {
  if (!supports || supports(wanted)) return wanted;
  if (wanted.tile.rows > 1) {
    WeightSpec groups = wanted;
    groups.tile.rows = 1;
    if (supports(groups)) return groups;
  }
  const WeightSpec as_is = wanted.with_activations(Activations::kAsIs);
  if (supports(as_is)) return as_is;
  return plain;
}

Status check_layout(const Quantization& quantization, std::string_view found) {
  const std::string& named = quantization.layout;
  if (named.empty() || named == found) return ok_status();
  if (named == "auto-round" && (found == "gptq" || found == "awq")) return ok_status();  // it writes these two
  if (found.empty()) {
    return invalid_argument(
        "--quantization {}: the weights of this checkpoint are floats, and a checkpoint's layout is "
        "not made while it loads; leave the flag out, or use int8 or int4",
        named);
  }
  return invalid_argument("--quantization {}: this checkpoint is {}; leave the flag out", named, found);
}

Result<Quantization> parse_quantization(std::string_view text, ActivationDType activations) {
  const auto error = [&] { return invalid_argument("--quantization '{}': use {}", text, kAllowed); };
  Quantization quantization{
      .linear = {}, .vocabulary = {}, .activations = activations, .layout = {}, .imitates_checkpoint = false};
  for (const std::string_view none : {"", "none", "auto"}) {
    if (text == none) return quantization;
  }
  // A checkpoint's own layout is read from its files; naming it, as vLLM's users do, only checks it.
  std::string_view layout = text;
  if (layout.ends_with("_marlin")) layout.remove_suffix(7);  // vLLM's kernels for the layout
  for (const std::string_view own : {"gptq", "awq", "auto-round", "compressed-tensors", "fp8", "gguf"}) {
    if (layout != own) continue;
    quantization.layout = own;
    return quantization;
  }
  std::string_view rest = text;
  take_prefix(rest, "w");
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
  if (take_prefix(rest, "-a16")) quantization.activations = ActivationDType::kModel;
  if (!rest.empty()) return error();
  spec.activations = default_activations(spec);
  spec = quantization.with_activations(spec);
  quantization.vocabulary = quantization.with_activations(integer_spec(Codes::kInt8));
  return quantization;
}

}  // namespace spate
