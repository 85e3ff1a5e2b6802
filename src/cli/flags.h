// The table of flags: every flag of every command is declared once, in flags.cpp and flags_offline.cpp, with its names, type,
// bounds, default, group and help. The command line, the YAML file, --print-config, --help=WORD, the suggestion for a typo and
// docs/flags.md all read that declaration.
#pragma once

#include <string>
#include <vector>

#include "cli/arguments.h"

namespace CLI {
class App;
class Option;
class Validator;
}  // namespace CLI

namespace spate {

std::vector<std::string> device_names();      // what --device takes
std::vector<std::string> instruction_sets();  // of every back-end

// models: takes what --model says, as often as it comes; null: the last counts.
void add_model_flags(CLI::App* app, ModelArguments& m, bool model_required = true, std::vector<std::string>* models = nullptr);
void add_parser_flags(CLI::App* app, ServeArguments& s);  // of serve, for each model
void add_idle_flag(CLI::App* app, ServeArguments& s);     // the same
void add_run_flags(CLI::App* app, RunArguments& r);
void add_serve_flags(CLI::App* app, ServeArguments& s);
void add_generate_flags(CLI::App* app, GenerateArguments& g, bool chat);
void add_chat_flags(CLI::App* app, ChatArguments& c);
void add_eval_flags(CLI::App* app, EvalArguments& e);
void add_self_test_flags(CLI::App* app, ModelArguments& m);
void add_quantize_flags(CLI::App* app, Arguments& arguments);
void add_kernels_flags(CLI::App* kernels, Arguments& arguments);
void add_bench_flags(CLI::App* bench, Arguments& arguments);
// --config, --print-config, --log-level, --log-format: of every command.
void add_common_flags(CLI::App* app, Arguments& arguments, std::string& config_path);
// Flags of vLLM that need no setting here, and those that are known and not built: refused with the reason.
void add_vllm_flags(CLI::App* app);
bool is_vllm_flag(const CLI::Option& option);  // one of those
// "--enforce-eager has no effect here: ..." of each that was given.
std::vector<std::string> no_effect_notes(const CLI::App& app);

// Declares a whole number that takes vLLM's suffixes: 2k = 2000, 2K = 2048, 1M, 4G.
template <typename T>
CLI::Option* add_count(CLI::App* app, const std::string& name, T& value, const std::string& help, int lowest = 0);
// For CLI::Option::check. A number, not NaN, in [lowest, highest]; a seed in [0, 2^64).
CLI::Validator number_in(double lowest, double highest);
CLI::Validator seed_number();
// Declares a flag without a value; its default is shown.
CLI::Option* add_switch(CLI::App* app, const std::string& names, bool& value, const std::string& help);
// The flags declared from here on belong to this group of --help.
void begin_group(CLI::App* app, const std::string& group);

}  // namespace spate
