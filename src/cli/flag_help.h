// What the table of flags says, for people: help on a word, the nearest name of a typo, the pages of docs/.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace spate {

// The flags whose name, group or help contains `word`, in any case.
std::string help_on(const CLI::App& app, const std::string& word);
std::string nearest_flag(const CLI::App& app, const std::string& name);  // without dashes; empty when there is none
std::string nearest_word(const std::vector<std::string>& words, const std::string& word);
std::string flags_markdown(const CLI::App& app);  // docs/flags.md

}  // namespace spate
