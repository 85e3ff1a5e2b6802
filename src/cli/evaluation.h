// evaluation: exact match per skill on a model's held-out questions, perplexity on its held-out text, divergence from a
// reference run. Greedy.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "base/status.h"
#include "cli/arguments.h"
#include "cli/divergence.h"

namespace spate {

struct SkillScore {
  int num_right = 0;
  int num_asked = 0;
  double score() const { return num_asked > 0 ? static_cast<double>(num_right) / num_asked : 0; }
};

struct EvalReport {
  std::map<std::string, SkillScore> skills;
  double perplexity = 0;  // of a token; 0 without text
  int64_t num_text_tokens = 0;
  std::map<std::string, Divergence> divergences;  // from --reference, of text and answers; else empty
  int64_t num_output_tokens = 0;
  double seconds = 0;  // of the questions
  uint64_t num_preemptions = 0;
  // Of the questions: drafts that ran, that were kept, and of these by relaxed acceptance.
  uint64_t num_drafts = 0, num_drafts_accepted = 0, num_drafts_relaxed = 0, num_drafted_rows = 0;

  double average() const {
    double sum = 0;
    for (const auto& [name, skill] : skills) sum += skill.score();
    return skills.empty() ? 0 : sum / static_cast<double>(skills.size());
  }
};

// Loads the model, asks the questions of eval_dir (cli/eval_data.h), does what --write-reference and --reference ask, and lets
// the model go again.
Result<EvalReport> evaluate(const ModelArguments& model, const EvalArguments& arguments,
                            const std::filesystem::path& eval_dir);

}  // namespace spate
