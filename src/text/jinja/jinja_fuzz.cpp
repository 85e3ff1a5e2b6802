// Any bytes as a template, rendered with a context that has values of all kinds: no crash, no leak, no hang.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "text/jinja/jinja_json.h"
#include "text/jinja/template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spate::jinja;
  static const Value context = from_json(nlohmann::ordered_json::parse(R"({
    "messages": [{"role": "user", "content": "Hi \u4f60"}, {"role": "assistant", "content": null}],
    "n": 3, "f": 2.5, "s": "text", "l": [3, 1, 2], "d": {"b": 1, "a": [1]}, "t": true, "none": null})"));
  const auto parsed = Template::parse(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!parsed.ok()) return 0;
  Limits limits;
  limits.max_steps = 200'000;
  limits.max_live_bytes = size_t{32} << 20;
  limits.max_output_bytes = size_t{1} << 20;
  const auto rendered = parsed->render(
      context, [](const std::string& format) { return format; }, limits);
  static_cast<void>(rendered.ok());
  return 0;
}
