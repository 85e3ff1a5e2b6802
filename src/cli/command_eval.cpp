// spate eval: exact match per skill on the model's held-out questions, perplexity on its held-out text, divergence from a reference
// run. Greedy.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/evaluation.h"

namespace spate {
namespace {

void print_eval_report(const EvalReport& report, bool json) {
  if (json) {
    nlohmann::ordered_json skills = nlohmann::ordered_json::object();
    for (const auto& [name, skill] : report.skills) skills[name] = skill.score();
    nlohmann::ordered_json object{
        {"average", report.average()}, {"skills", skills}, {"perplexity", report.perplexity}, {"preemptions", report.num_preemptions}};
    for (const auto& [kind, divergence] : report.divergences) {
      object["divergence"][kind] = {{"kl", divergence.kl},
                                    {"kl_error", divergence.kl_error},
                                    {"equal_tops", divergence.equal_tops},
                                    {"tokens", divergence.num_tokens}};
    }
    if (report.num_drafts > 0) {
      object["drafts"] = {{"run", report.num_drafts},
                          {"accepted", report.num_drafts_accepted},
                          {"relaxed", report.num_drafts_relaxed},
                          {"row_steps", report.num_drafted_rows}};
    }
    std::printf("%s\n", object.dump().c_str());
    return;
  }
  for (const auto& [name, skill] : report.skills) {
    std::printf("%-14s %4d of %4d  %.3f\n", name.c_str(), skill.num_right, skill.num_asked, skill.score());
  }
  std::printf("%-14s               %.4f\n", "average", report.average());
  if (report.num_text_tokens > 0) {
    std::printf("%-14s               %.4f  (%lld tokens)\n", "perplexity", report.perplexity,
                static_cast<long long>(report.num_text_tokens));
  }
  for (const auto& [kind, divergence] : report.divergences) {
    std::printf("%-14s               %.6f  +- %.6f nats from the reference, equal tops %.4f  (%lld tokens)\n", ("KL " + kind).c_str(),
                divergence.kl, divergence.kl_error, divergence.equal_tops, static_cast<long long>(divergence.num_tokens));
  }
  if (report.num_drafts > 0) {
    std::printf(
        "%llu drafts in %llu row-steps: %.1f %% kept, of these %llu by relaxed acceptance; acceptance length %.2f\n",
        static_cast<unsigned long long>(report.num_drafts), static_cast<unsigned long long>(report.num_drafted_rows),
        100 * static_cast<double>(report.num_drafts_accepted) / static_cast<double>(report.num_drafts),
        static_cast<unsigned long long>(report.num_drafts_relaxed),
        1 + static_cast<double>(report.num_drafts_accepted) / static_cast<double>(report.num_drafted_rows));
  }
  std::printf("%lld output tokens in %.1f s: %.0f tokens/s, %llu preemptions\n", static_cast<long long>(report.num_output_tokens),
              report.seconds, static_cast<double>(report.num_output_tokens) / report.seconds,
              static_cast<unsigned long long>(report.num_preemptions));
}

}  // namespace

Result<int> run_eval(const Arguments& arguments) {
  if (arguments.eval.json && log_level() == LogLevel::kInfo) set_log_level(LogLevel::kWarning);
  std::filesystem::path model_dir = arguments.model.model;
  std::error_code error;
  if (!std::filesystem::is_directory(model_dir, error)) model_dir = model_dir.parent_path();
  const std::filesystem::path eval_dir = arguments.eval.data.empty() ? model_dir / "eval" : std::filesystem::path(arguments.eval.data);
  ASSIGN_OR_RETURN(const EvalReport report, evaluate(arguments.model, arguments.eval, eval_dir));
  print_eval_report(report, arguments.eval.json);
  return 0;
}

}  // namespace spate
