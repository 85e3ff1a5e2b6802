// /metrics under more names: those of other engines, and those that vLLM had before, for dashboards and routers that
// read them. Each is another name of a family of ours, with the same labels and values.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace spate {

struct MetricAlias {
  std::string_view dialect;
  std::string_view name;  // ours, of a family
  std::string_view alias;
};

std::span<const MetricAlias> metric_aliases();
// "sglang,legacy". An error names the dialects that there are; "vllm" is one without aliases.
Result<std::vector<std::string>> parse_metric_dialects(std::string_view text);
// The text of MetricsWriter, each family followed by its aliases.
std::string with_metric_aliases(std::string_view text, const std::vector<std::string>& dialects);

}  // namespace spate
