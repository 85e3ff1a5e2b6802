#include "cli/flag_help.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>

namespace spate {
namespace {

int edit_distance(const std::string& a, const std::string& b) {
  std::vector<int> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int substituted = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

// "-t, --threads", "MODEL"
std::string names_of(const CLI::Option& option) {
  std::string text;
  const auto add = [&](const std::string& dashes, const std::string& name) {
    text += fmt::format("{}{}{}", text.empty() ? "" : ", ", dashes, name);
  };
  if (option.get_positional()) add("", option.get_single_name() == "model" ? "MODEL" : option.get_single_name());
  for (const std::string& name : option.get_snames()) add("-", name);
  for (const std::string& name : option.get_lnames()) add("--", name);
  return text;
}

// What a value may be: "N", "{auto,vllm}", "" for a switch.
std::string values_of(const CLI::Option& option) {
  return option.get_expected_max() == 0 ? "" : option.get_type_name();
}

bool is_hidden(const CLI::Option& option) { return option.get_group().empty() || option.get_lnames().empty(); }

}  // namespace

std::string help_on(const CLI::App& app, const std::string& word) {
  std::string text, group;
  for (const CLI::Option* option : app.get_options()) {
    if (is_hidden(*option)) continue;
    const std::string all = names_of(*option) + "\n" + option->get_group() + "\n" + option->get_description();
    if (word != "all" && lower(all).find(lower(word)) == std::string::npos) continue;
    if (option->get_group() != group) text += fmt::format("{}{}:\n", text.empty() ? "" : "\n", option->get_group());
    group = option->get_group();
    const std::string default_text = option->get_default_str();
    text += fmt::format("  {} {}\n      {}{}\n", names_of(*option), values_of(*option), option->get_description(),
                        default_text.empty() ? "" : fmt::format(" [{}]", default_text));
  }
  if (text.empty()) return fmt::format("No flag of {} has to do with '{}'.\n", app.get_name(), word);
  return text;
}

std::string nearest_word(const std::vector<std::string>& words, const std::string& word) {
  std::string nearest;
  int best = 1 << 30;
  for (const std::string& candidate : words) {
    const int distance = edit_distance(candidate, word);
    if (distance < best) {
      best = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

std::string nearest_flag(const CLI::App& app, const std::string& name) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& spelling : option->get_lnames()) names.push_back(spelling);
  }
  return nearest_word(names, name);
}

std::string flags_markdown(const CLI::App& app) {
  std::string out =
      "# The flags of `spate serve`\n\n"
      "`spate help flags` prints this page from the declarations in `src/cli/flags.cpp` and `src/cli/vllm_flags.cpp`; a test\n"
      "compares the two. The names are vLLM's where the meaning is the same. `--config FILE` reads the same names from YAML, in\n"
      "sections or without; the command line wins. `--print-config` tells where each value comes from, `--help=WORD` shows the\n"
      "flags that have to do with a word. Whole numbers take `2k` = 2000, `2K` = 2048, `1M`, `4G`.\n";
  std::string group;
  for (const CLI::Option* option : app.get_options()) {
    if (is_hidden(*option) || option->get_lnames().front() == "help") continue;
    if (option->get_group() != group && out.find("\n## " + option->get_group() + "\n") == std::string::npos) {
      group = option->get_group();
      out += fmt::format("\n## {}\n\n| Flag | Value | Default | |\n|---|---|---|---|\n", group);
      for (const CLI::Option* member : app.get_options()) {
        if (is_hidden(*member) || member->get_group() != group) continue;
        std::string names = names_of(*member), values = values_of(*member);
        std::replace(values.begin(), values.end(), '|', '/');
        out += fmt::format("| `{}` | {} | {} | {} |\n", names, values, member->get_default_str(), member->get_description());
      }
    }
  }
  return out;
}

}  // namespace spate
