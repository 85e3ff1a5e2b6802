#include "server/metrics_compat.h"

#include <algorithm>

namespace spate {
namespace {

constexpr std::string_view kDialects[] = {"vllm", "legacy", "sglang", "fastdeploy"};
constexpr MetricAlias kAliases[] = {
    // vLLM's of before V1, which vLLM's production-stack and older dashboards read.
    {"legacy", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"},
    {"legacy", "vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"},
    {"legacy", "vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"},
    {"legacy", "spate:prefix_cache_hit_rate", "vllm:gpu_prefix_cache_hit_rate"},
    {"legacy", "vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"},
    {"sglang", "vllm:num_requests_running", "sglang:num_running_reqs"},
    {"sglang", "vllm:num_requests_waiting", "sglang:num_queue_reqs"},
    {"sglang", "vllm:kv_cache_usage_perc", "sglang:token_usage"},
    {"sglang", "vllm:prompt_tokens_total", "sglang:prompt_tokens_total"},
    {"sglang", "vllm:generation_tokens_total", "sglang:generation_tokens_total"},
    {"sglang", "vllm:prompt_tokens_cached_total", "sglang:cached_tokens_total"},
    {"sglang", "spate:prefix_cache_hit_rate", "sglang:cache_hit_rate"},
    {"sglang", "vllm:time_to_first_token_seconds", "sglang:time_to_first_token_seconds"},
    {"sglang", "vllm:inter_token_latency_seconds", "sglang:inter_token_latency_seconds"},
    {"sglang", "vllm:e2e_request_latency_seconds", "sglang:e2e_request_latency_seconds"},
    {"sglang", "vllm:request_queue_time_seconds", "sglang:queue_time_seconds"},
    {"fastdeploy", "vllm:num_requests_running", "fastdeploy:num_requests_running"},
    {"fastdeploy", "vllm:num_requests_waiting", "fastdeploy:num_requests_waiting"},
    {"fastdeploy", "vllm:kv_cache_usage_perc", "fastdeploy:gpu_cache_usage_perc"},
    {"fastdeploy", "spate:prefix_cache_hit_rate", "fastdeploy:hit_token_rate"},
    {"fastdeploy", "vllm:request_success_total", "fastdeploy:request_success_total"},
    {"fastdeploy", "vllm:time_to_first_token_seconds", "fastdeploy:time_to_first_token_seconds"},
    {"fastdeploy", "vllm:inter_token_latency_seconds", "fastdeploy:time_per_output_token_seconds"},
    {"fastdeploy", "vllm:e2e_request_latency_seconds", "fastdeploy:e2e_request_latency_seconds"},
    {"fastdeploy", "vllm:request_prompt_tokens", "fastdeploy:request_prompt_tokens"},
    {"fastdeploy", "vllm:request_generation_tokens", "fastdeploy:request_generation_tokens"},
};
constexpr std::string_view kHelp = "# HELP ", kType = "# TYPE ";

// `family` is lines that begin with the name, or with it behind HELP or TYPE.
void append_renamed(std::string_view family, const MetricAlias& alias, std::string& out) {
  while (!family.empty()) {
    std::string_view line = family.substr(0, family.find('\n') + 1);
    family.remove_prefix(line.size());
    if (line.starts_with('#')) {
      out += line.substr(0, kHelp.size());
      line.remove_prefix(kHelp.size());
    }
    out += alias.alias;
    out += line.substr(alias.name.size());
  }
}

}  // namespace

std::span<const MetricAlias> metric_aliases() { return kAliases; }

Result<std::vector<std::string>> parse_metric_dialects(std::string_view text) {
  std::vector<std::string> dialects;
  for (bool is_last = false; !is_last;) {
    const size_t comma = text.find(',');
    is_last = comma == std::string_view::npos;
    const std::string_view dialect = text.substr(0, comma);
    if (std::ranges::find(kDialects, dialect) == std::end(kDialects)) {
      return invalid_argument("takes vllm, legacy, sglang and fastdeploy, with commas between them, got '{}'", dialect);
    }
    dialects.emplace_back(dialect);
    if (!is_last) text.remove_prefix(comma + 1);
  }
  return dialects;
}

std::string with_metric_aliases(std::string_view text, const std::vector<std::string>& dialects) {
  static_assert(kHelp.size() == kType.size());
  std::string out;
  while (!text.empty()) {
    const size_t next = text.find("\n# HELP ");
    const std::string_view family = text.substr(0, next == std::string_view::npos ? text.size() : next + 1);
    text.remove_prefix(family.size());
    out += family;
    const std::string_view head = family.starts_with(kHelp) ? family.substr(kHelp.size()) : std::string_view();
    const std::string_view name = head.substr(0, head.find(' '));
    for (const MetricAlias& alias : kAliases) {
      if (alias.name == name && std::ranges::find(dialects, alias.dialect) != dialects.end()) {
        append_renamed(family, alias, out);
      }
    }
  }
  return out;
}

}  // namespace spate
