#include "backend/cuda/warm_programs.h"

#include <algorithm>
#include <charconv>

#include "backend/cuda/integer_scratch.h"
#include "backend/cuda/kernel_compiler.h"

namespace spate::cuda {
namespace {

constexpr std::string_view kLabel = "// WARM ";
constexpr std::string_view kBlanks = " \t\r";

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(trimmed(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return parts;
}

std::string_view format_word(const WeightSpec& spec) {
  if (!spec.has_integer_codes()) return spec.codes == Codes::kBf16 ? "bf16" : "f32";
  if (!is_integer_kernel_spec(spec)) return "other-codes";
  if (spec.codes == Codes::kInt8) return "int8";
  return integer_layout({.out_features = 1, .in_features = 1, .spec = spec}).num_multipliers == 2 ? "int4" : "int4-g32";
}

void add_words(std::set<std::string>& words, const KvLayerDesc& layer) {
  if (layer.kind == KvKind::kLatent) {
    words.insert("latent");
    if (layer.dtype == DType::kI8) words.insert("latent-int8");
    if (layer.dtype == DType::kBf16) words.insert("latent-bf16");
    return;
  }
  words.insert("heads");
  words.insert(layer.head_dim == 64 ? "head-64" : layer.head_dim == 128 ? "head-128" : "other-heads");
  if (layer.dtype == DType::kI8) words.insert("int8-cache");
  if (layer.dtype == DType::kBf16) words.insert("bf16-cache");
}

}  // namespace

Result<WarmLine> parse_warm_line(std::string_view program_text) {
  WarmLine line;
  const size_t at = program_text.find(kLabel);
  if (at == std::string_view::npos) return line;
  std::string_view text = program_text.substr(at + kLabel.size());
  text = trimmed(text.substr(0, text.find('\n')));
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos) return invalid_argument("WARM {}: no colon behind the seconds", text);
  const std::string_view seconds = text.substr(0, colon);
  const auto [rest, error] = std::from_chars(seconds.data(), seconds.data() + seconds.size(), line.seconds);
  if (error != std::errc() || std::string_view(rest, seconds.data() + seconds.size()) != " s") {
    return invalid_argument("WARM {}: '{}' is not a number of seconds", text, seconds);
  }
  const std::set<std::string> known = all_use_words();
  for (const std::string_view use : split(text.substr(colon + 1), ';')) {
    if (use == "always") continue;
    std::vector<std::string>& words = line.uses.emplace_back();
    for (const std::string_view word : split(use, ',')) {
      if (!known.contains(std::string(word))) return invalid_argument("WARM {}: '{}' is no word for a use", text, word);
      words.emplace_back(word);
    }
  }
  return line;
}

std::set<std::string> all_use_words() {
  return {"hopper",      "older",           "fast",        "deterministic", "bf16",        "f32",
          "heads",       "head-64",         "head-128",    "other-heads",   "latent",      "latent-bf16",
          "latent-int8", "bf16-cache",      "int8-cache",  "bf16-weights",  "int8",        "int4",
          "int4-g32",    "codes",           "other-codes", "experts",       "expert-bf16", "expert-int8",
          "expert-int4", "expert-int4-g32", "bench"};
}

std::set<std::string> use_words(const DeviceUse& use, std::string_view architecture, bool is_deterministic) {
  if (use.is_everything) return all_use_words();
  std::set<std::string> words = {architecture == kHopper ? "hopper" : "older",
                                 is_deterministic ? "deterministic" : "fast",
                                 use.act_dtype == DType::kBf16 ? "bf16" : "f32"};
  for (const KvLayerDesc& layer : use.kv_layers) add_words(words, layer);
  for (const WeightSpec& spec : use.weights) {
    const std::string_view word = format_word(spec);
    if (word == "bf16") words.insert("bf16-weights");
    if (spec.has_integer_codes()) words.emplace(word);
    if (is_integer_kernel_spec(spec)) words.insert("codes");
  }
  for (const WeightSpec& spec : use.expert_weights) {
    words.insert("experts");
    const std::string_view word = format_word(spec);
    if (word != "f32" && word != "other-codes") words.insert("expert-" + std::string(word));
    if (is_integer_kernel_spec(spec)) words.insert("codes");
  }
  return words;
}

Result<std::vector<std::string_view>> warm_programs(const KernelSources& sources, std::string_view architecture,
                                                    const std::set<std::string>& words) {
  std::vector<std::pair<double, std::string_view>> found;
  for (const std::string_view program : programs_for(architecture)) {
    const std::string* text = sources.find(std::string(kKernelFolder) + std::string(program));
    if (text == nullptr) return not_found("kernel source {}{} does not exist", kKernelFolder, program);
    Result<WarmLine> line = parse_warm_line(*text);
    if (!line.ok()) return line.status().with_context(program);
    const auto holds = [&](const std::vector<std::string>& use) {
      return std::ranges::all_of(use, [&](const std::string& word) { return words.contains(word); });
    };
    if (line->uses.empty() || std::ranges::any_of(line->uses, holds)) found.emplace_back(-line->seconds, program);
  }
  std::ranges::stable_sort(found, {}, &std::pair<double, std::string_view>::first);
  std::vector<std::string_view> programs;
  for (const auto& [seconds, program] : found) programs.push_back(program);
  return programs;
}

}  // namespace spate::cuda
