#include "cli/shell_completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/flag_help.h"

namespace spate {
namespace {

std::string full_name(const CLI::App& app, const CLI::App& leaf) {
  return leaf.get_parent() == &app ? leaf.get_name() : leaf.get_parent()->get_name() + " " + leaf.get_name();
}

std::vector<std::string> command_words(const CLI::App& app) {
  std::vector<std::string> words;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    words.push_back(sub->get_name());
  return words;
}

bool has_value(const CLI::Option& option) { return option.get_expected_max() > 0; }

// {auto,vllm}: the words; empty: anything.
std::vector<std::string> choices_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t begin = type.find('{'), end = type.find('}');
  std::vector<std::string> words;
  if (!has_value(option) || begin == std::string::npos || end == std::string::npos) return words;
  for (size_t pos = begin + 1; pos < end;) {
    const size_t comma = std::min(type.find(',', pos), end);
    words.push_back(type.substr(pos, comma - pos));
    pos = comma + 1;
  }
  return words;
}

// Calls `tell(option, names)` of every flag that is shown, with its dashes.
template <typename Tell>
void for_each_flag(const CLI::App& leaf, const Tell& tell) {
  for (const CLI::Option* option : leaf.get_options()) {
    if (option->get_group().empty() || option->get_lnames().empty()) continue;
    std::vector<std::string> names;
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    tell(*option, names);
  }
}

std::string bash_script(const CLI::App& app, const std::vector<CLI::App*>& leaves) {
  std::string flags, values, sub_commands;
  for (const CLI::App* leaf : leaves) {
    const std::string command = full_name(app, *leaf);
    std::vector<std::string> all;
    for_each_flag(*leaf, [&](const CLI::Option& option, const std::vector<std::string>& names) {
      all.insert(all.end(), names.begin(), names.end());
      if (!has_value(option)) return;
      std::string patterns;
      for (const std::string& name : names)
        patterns += fmt::format("{}'{} {}'", patterns.empty() ? "" : "|", command, name);
      values += fmt::format("    {}) is_value=1; words='{}' ;;\n", patterns, fmt::join(choices_of(option), " "));
    });
    flags += fmt::format("    '{}') words='{}' ;;\n", command, fmt::join(all, " "));
  }
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    const std::vector<std::string> words = command_words(*sub);
    if (!words.empty())
      sub_commands += fmt::format("      {}) words='{}' ;;\n", sub->get_name(), fmt::join(words, " "));
  }
  return fmt::format(R"(# spate completion bash, zsh: made from the table of flags.
_spate() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} prefix='' words='' is_value='' command
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    words='{} help'
    case "$current" in -*) words='--help --version' ;; esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    return
  fi
  # --flag=value: three words in bash, one in zsh
  case "$current" in
    =) current='' ;;
    --*=*) prefix=${{current%%=*}}=; previous=${{current%%=*}}; current=${{current#*=}} ;;
    *) if [ "$previous" = = ]; then previous=${{COMP_WORDS[COMP_CWORD-2]}}; fi ;;
  esac
  command=${{COMP_WORDS[1]}}
  if [ "$COMP_CWORD" -eq 2 ]; then
    case "$command" in
      completion) words='{}' ;;
      help) words='{}' ;;
{}    esac
    if [ -n "$words" ]; then
      COMPREPLY=($(compgen -W "$words" -- "$current"))
      return
    fi
  fi
  case "$command" in
    {}) command="$command ${{COMP_WORDS[2]}}" ;;
  esac
  case "$command $previous" in
{}  esac
  if [ -z "$is_value" ]; then
    case "$current" in -*) ;; *) return ;; esac
    case "$command" in
{}    esac
  fi
  COMPREPLY=($(compgen -P "$prefix" -W "$words" -- "$current"))
}}
complete -o default -F _spate spate
)",
                     fmt::join(command_words(app), " "), fmt::join(completion_shells(), " "),
                     fmt::join(command_words(app), " "), sub_commands, "bench|kernels", values, flags);
}

// In single quotes for fish.
std::string fish_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' || c == '\\' ? std::string("\\") + c : std::string(1, c == '\n' ? ' ' : c);
  return out + "'";
}

std::string fish_script(const CLI::App& app, const std::vector<CLI::App*>& leaves) {
  std::string out =
      "# spate completion fish: made from the table of flags.\n"
      "function __spate_runs\n"  // its arguments are the first words behind the program's name
      "  set -l words (commandline -opc)\n"
      "  set -l last (math 1 + (count $argv))\n"
      "  test (count $words) -ge $last; and test \"$words[2..$last]\" = \"$argv\"\n"
      "end\n"
      "complete -c spate -n __fish_use_subcommand -f\n"
      "complete -c spate -n __fish_use_subcommand -l help -d 'Print this help message and exit'\n"
      "complete -c spate -n __fish_use_subcommand -l version -d 'Display program version information and exit'\n"
      "complete -c spate -n __fish_use_subcommand -f -a help -d 'Explain a command, a flag or the API'\n";
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    out += fmt::format("complete -c spate -n __fish_use_subcommand -f -a {} -d {}\n", sub->get_name(),
                       fish_quoted(sub->get_description()));
    const std::vector<std::string> words = command_words(*sub);
    if (words.empty()) continue;
    out += fmt::format(
        "complete -c spate -n '__spate_runs {0}; and not __fish_seen_subcommand_from {1}' -f -a '{1}'\n",
        sub->get_name(), fmt::join(words, " "));
  }
  out += fmt::format("complete -c spate -n '__spate_runs completion' -f -a '{}'\n", fmt::join(completion_shells(), " "));
  out += fmt::format("complete -c spate -n '__spate_runs help' -f -a '{}'\n", fmt::join(command_words(app), " "));
  for (const CLI::App* leaf : leaves) {
    const std::string condition = "__spate_runs " + full_name(app, *leaf);
    for_each_flag(*leaf, [&](const CLI::Option& option, const std::vector<std::string>& names) {
      out += fmt::format("complete -c spate -n '{}'", condition);
      for (const std::string& name : names)
        out += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      const std::vector<std::string> choices = choices_of(option);
      if (!choices.empty()) {
        out += fmt::format(" -x -a '{}'", fmt::join(choices, " "));
      } else if (has_value(option)) {
        out += " -r";
      }
      out += " -d " + fish_quoted(option.get_description()) + "\n";
    });
  }
  return out;
}

}  // namespace

std::vector<std::string> completion_shells() { return {"bash", "zsh", "fish"}; }

Result<std::string> completion_script(const std::string& shell, const CLI::App& app,
                                      const std::vector<CLI::App*>& leaves) {
  if (shell == "bash") return bash_script(app, leaves);
  if (shell == "zsh")
    return "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n" +
           bash_script(app, leaves);
  if (shell == "fish") return fish_script(app, leaves);
  return invalid_argument("completion takes bash, zsh or fish, got '{}'; the nearest is '{}'", shell,
                          nearest_word(completion_shells(), shell));
}

}  // namespace spate
