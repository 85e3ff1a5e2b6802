#include "server/infill.h"

#include <string_view>

namespace spate {
namespace {

// By family: Qwen and others, StarCoder and Granite, GLM, CodeLlama, DeepSeek (whose "hole" stands where the suffix
// begins).
constexpr struct {
  std::string_view prefix, suffix, middle, repo, file;
} kFamilies[] = {
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"},
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<repo_name>", "<file_sep>"},
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<reponame>", "<filename>"},
    {"<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>", {}, {}},
    {"▁<PRE>", "▁<SUF>", "▁<MID>", {}, {}},
    {"<PRE>", "<SUF>", "<MID>", {}, {}},
    {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", {}, {}},
};
constexpr std::string_view kProject = "project\n", kFile = "file\n";  // a model must be told some name
constexpr std::string_view kSnippet = "\n\n--- snippet ---\n\n";  // between files of a model without a token for them

void append(std::vector<int32_t>& ids, const std::vector<int32_t>& more) {
  ids.insert(ids.end(), more.begin(), more.end());
}

}  // namespace

std::optional<InfillTokens> find_infill_tokens(const Tokenizer& tokenizer) {
  std::optional<InfillTokens> best;
  for (const auto& family : kFamilies) {
    const auto prefix = tokenizer.token_id(family.prefix), suffix = tokenizer.token_id(family.suffix),
               middle = tokenizer.token_id(family.middle);
    if (!prefix || !suffix || !middle) continue;
    InfillTokens tokens{.prefix = *prefix, .suffix = *suffix, .middle = *middle};
    if (!family.repo.empty()) tokens.repo = tokenizer.token_id(family.repo);
    if (!family.file.empty()) tokens.file = tokenizer.token_id(family.file);
    if (tokens.repo && tokens.file) return tokens;
    if (!best) best = tokens;
  }
  if (best) best->repo = best->file = std::nullopt;  // one without the other has no meaning
  return best;
}

std::vector<int32_t> infill_prompt(const Tokenizer& tokenizer, const InfillTokens& tokens, const InfillText& text,
                                   size_t max_tokens) {
  std::vector<int32_t> hole;
  if (tokens.file) {
    hole.push_back(*tokens.file);
    append(hole, tokenizer.encode(kFile));
  }
  hole.push_back(tokens.prefix);
  append(hole, tokenizer.encode(text.prefix));
  hole.push_back(tokens.suffix);
  append(hole, tokenizer.encode(text.suffix));
  hole.push_back(tokens.middle);
  append(hole, tokenizer.encode(text.begun));

  std::vector<int32_t> begin, extra;
  if (tokenizer.adds_bos() && tokenizer.bos_token()) begin.push_back(tokenizer.bos_token()->id);
  if (tokens.repo) {
    begin.push_back(*tokens.repo);
    append(begin, tokenizer.encode(kProject));
  }
  for (const InfillText::File& file : text.extra) {
    if (tokens.file) {
      extra.push_back(*tokens.file);
      append(extra, tokenizer.encode(file.name + "\n"));
    } else {
      append(extra, tokenizer.encode(kSnippet));
    }
    append(extra, tokenizer.encode(file.text));
  }
  const size_t num_fixed = begin.size() + hole.size();
  const size_t room = max_tokens > num_fixed ? max_tokens - num_fixed : 0;
  if (extra.size() > room) extra.erase(extra.begin(), extra.end() - static_cast<std::ptrdiff_t>(room));
  append(begin, extra);
  append(begin, hole);
  return begin;
}

}  // namespace spate
