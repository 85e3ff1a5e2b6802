#include "cli/arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>

#include "cli/config_file.h"
#include "cli/flag_help.h"
#include "cli/flags.h"
#include "cli/version.h"
#include "core/step_plan.h"
#include "server/openapi.h"

namespace spate {
namespace {

std::string joined(const std::vector<std::string>& values) {
  std::string text;
  for (const std::string& value : values) text += (text.empty() ? "" : " ") + value;
  return text;
}

// A flag of vLLM that was not given: nothing to print.
bool is_silent(const CLI::Option& option) { return option.count() == 0 && is_vllm_flag(option); }

void describe(const CLI::App& app, const std::map<std::string, std::string>& file, const std::vector<std::string>& cli_args,
              Arguments& arguments) {
  std::string non_default;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_lnames().empty()) continue;
    const std::string name = option->get_lnames().front();
    if (name == "help" || name == "config" || name == "print-config" || is_silent(*option)) continue;
    std::string source = "default";
    std::string value = option->count() > 0 ? joined(option->reduced_results()) : option->get_default_str();
    if (option->count() > 0) {
      const bool on_command_line = std::any_of(cli_args.begin(), cli_args.end(), [&](const std::string& arg) {
        for (const std::string& spelling : option->get_lnames()) {
          if (arg == "--" + spelling || arg.rfind("--" + spelling + "=", 0) == 0) return true;
        }
        for (const std::string& spelling : option->get_snames()) {
          if (arg.rfind("-" + spelling, 0) == 0 && arg.rfind("--", 0) != 0) return true;
        }
        return false;
      });
      const auto from_file = file.find(name);
      source = on_command_line || from_file == file.end() ? "cli" : from_file->second;
      if (name.find("key") != std::string::npos) value = "(set)";
      non_default += fmt::format("{}'{}': '{}'", non_default.empty() ? "" : ", ", name, value);
    }
    arguments.config_lines.push_back(fmt::format("{}: {}  # {}", name, value.empty() ? "\"\"" : value, source));
  }
  arguments.notes = no_effect_notes(app);
  arguments.non_default_args = "{" + non_default + "}";
}

// vLLM takes --max_model_len for --max-model-len, and -tp.
std::string with_dashes(const std::string& arg) {
  if (arg == "-tp") return "--tensor-parallel-size";
  if (arg == "-pp") return "--pipeline-parallel-size";
  if (arg == "-dp") return "--data-parallel-size";
  if (arg.rfind("--", 0) != 0) return arg;
  const size_t end = std::min(arg.find('='), arg.size());
  std::string out = arg;
  std::replace(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(end), '_', '-');
  return out;
}

// The program's commands as CLI11 has them, with what they fill.
class CommandLine {
 public:
  explicit CommandLine(Arguments& arguments);

  // The command that `words` begin with, and how many words name it.
  std::pair<CLI::App*, size_t> find_command(const std::vector<std::string>& words);
  CLI::App app{"Spate serves large language models on the CPU you have, on one GPU, or on several.", "spate"};
  std::vector<CLI::App*> leaves;
  CLI::App* bench = nullptr;
  CLI::App* kernels = nullptr;
  CLI::App* serve = nullptr;
  std::string config_path;

 private:
  CLI::App* add_command(const char* name, const char* help) {
    CLI::App* command = app.add_subcommand(name, help);
    command->option_defaults()->always_capture_default();
    return command;
  }
};

CommandLine::CommandLine(Arguments& arguments) {
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("spate ") + kVersion);
  app.option_defaults()->always_capture_default();
  app.footer("spate help COMMAND, spate COMMAND --help=WORD, spate help flags, spate help api");
  serve = add_command("serve", "Serve a model over the OpenAI protocol");
  add_model_flags(serve, arguments.model);
  add_serve_flags(serve, arguments.serve);
  CLI::App* chat = add_command("chat", "Talk to a model in the terminal, in this process or on a server");
  add_model_flags(chat, arguments.model, false);
  add_generate_flags(chat, arguments.generate, true);
  add_chat_flags(chat, arguments.chat);
  CLI::App* generate = add_command("generate", "Answer prompts given on the command line or stdin");
  add_model_flags(generate, arguments.model);
  add_generate_flags(generate, arguments.generate, false);
  CLI::App* eval = add_command("eval", "Score a model on the questions in its eval/ folder");
  add_model_flags(eval, arguments.model);
  add_eval_flags(eval, arguments.eval);
  CLI::App* quantize = add_command("quantize", "Write a model with 8- or 4-bit weights, and say what it costs");
  add_quantize_flags(quantize, arguments);
  CLI::App* inspect = add_command("inspect", "Print architecture, tensors, memory need and whether it fits");
  add_model_flags(inspect, arguments.model);
  CLI::App* self_test = add_command("self-test", "Check this machine: its devices, its speed, and what its devices compute");
  add_self_test_flags(self_test, arguments.model);
  kernels = add_command("kernels", "GPU kernels: compile them ahead of time, report what they use");
  add_kernels_flags(kernels, arguments);
  bench = add_command("bench", "Measure: serve, throughput, latency, limits, kernel, table");
  add_bench_flags(bench, arguments);
  leaves = {serve, chat, generate, eval, quantize, inspect, self_test};
  for (CLI::App* parent : {kernels, bench}) {
    for (CLI::App* sub : parent->get_subcommands([](CLI::App*) { return true; })) leaves.push_back(sub);
  }
  for (CLI::App* command : leaves) {
    add_common_flags(command, arguments, config_path);
    if (command == serve) add_vllm_flags(command);
    for (CLI::Option* option : command->get_options()) {
      // Lists take all their values; everything else takes the last, so that the command line wins over the file.
      const std::string name = option->get_lnames().empty() ? "" : option->get_lnames().front();
      const bool is_list = name == "api-key" || name == "served-model-name" || name == "allowed-origins" ||
                           name == "prompt" || name == "configs";
      if (!is_list && name != "help") option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    }
  }
}

std::pair<CLI::App*, size_t> CommandLine::find_command(const std::vector<std::string>& words) {
  CLI::App* command = &app;
  size_t num_words = 0;
  while (num_words < words.size()) {
    const auto next = command->get_subcommands([&](CLI::App* sub) { return sub->get_name() == words[num_words]; });
    if (next.empty()) break;
    command = next.front();
    ++num_words;
  }
  return {command, num_words};
}

std::vector<std::string> command_names(CLI::App& app) {
  std::vector<std::string> names;
  for (CLI::App* sub : app.get_subcommands([](CLI::App*) { return true; })) names.push_back(sub->get_name());
  return names;
}

Status unknown_command(CLI::App& app, const std::string& word) {
  std::vector<std::string> names = command_names(app);
  if (app.get_parent() == nullptr) names.emplace_back("help");
  return invalid_argument("there is no command '{}'; the nearest is '{}'", word, nearest_word(names, word));
}

// "spate help", "spate help serve", "spate help api", and --help=WORD. True: it was printed.
Result<bool> print_help(CommandLine& line, const std::vector<std::string>& args) {
  if (!args.empty() && args[0] == "help") {
    std::vector<std::string> words(args.begin() + 1, args.end());
    if (words == std::vector<std::string>{"api"}) {
      std::printf("%s", api_reference_markdown().c_str());
    } else if (words == std::vector<std::string>{"flags"}) {
      std::printf("%s", flags_markdown(*line.serve).c_str());
    } else {
      const auto [command, num_words] = line.find_command(words);
      if (num_words < words.size()) return unknown_command(*command, words[num_words]);
      std::printf("%s", command->help().c_str());
    }
    return true;
  }
  for (const std::string& arg : args) {
    if (arg.rfind("--help=", 0) != 0) continue;
    std::printf("%s", help_on(*line.find_command(args).first, arg.substr(7)).c_str());
    return true;
  }
  return false;
}

// Names the command or the flag that is mistyped, before CLI11 says less.
Status check_names(CommandLine& line, const std::vector<std::string>& args) {
  const auto [command, num_words] = line.find_command(args);
  const bool is_leaf = command_names(*command).empty();
  if (!is_leaf && num_words < args.size() && args[num_words][0] != '-') {
    return unknown_command(*command, args[num_words]);
  }
  for (size_t i = num_words; is_leaf && i < args.size() && args[i] != "--"; ++i) {
    if (args[i].rfind("--", 0) != 0 || args[i].size() < 4) continue;
    const std::string name = args[i].substr(2, args[i].find('=') - 2);
    if (command->get_option_no_throw("--" + name) != nullptr) continue;
    return invalid_argument("there is no flag --{}; the nearest is --{}", name, nearest_flag(*command, name));
  }
  return ok_status();
}

std::string config_file_of(const std::vector<std::string>& args) {
  std::string path;
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--config" && i + 1 < args.size()) path = args[i + 1];
    if (args[i].rfind("--config=", 0) == 0) path = args[i].substr(9);
  }
  return path;
}

}  // namespace

std::string flags_page() {
  Arguments arguments;
  return flags_markdown(*CommandLine(arguments).serve);
}

Result<Arguments> parse_arguments(int argc, const char* const* argv) {
  Arguments arguments;
  CommandLine line(arguments);
  std::vector<std::string> cli_args;
  for (int i = 1; i < argc; ++i) cli_args.push_back(with_dashes(argv[i]));
  ASSIGN_OR_RETURN(const bool is_printed, print_help(line, cli_args));
  if (is_printed) return arguments;
  RETURN_IF_ERROR(check_names(line, cli_args));

  std::map<std::string, std::string> file_sources;
  std::vector<std::string> args = cli_args;
  const auto [command, num_words] = line.find_command(cli_args);
  if (const std::string path = config_file_of(cli_args); !path.empty()) {
    // The file's values go in front of the command line's, behind the command words.
    std::vector<std::string> file_args;
    RETURN_IF_ERROR(read_config_file(path, *command, file_sources, file_args));
    args.insert(args.begin() + static_cast<std::ptrdiff_t>(num_words), file_args.begin(), file_args.end());
  }
  try {
    std::reverse(args.begin(), args.end());  // CLI11 takes them from the back
    line.app.parse(args);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) {
      line.app.exit(e);
      return arguments;
    }
    return invalid_argument("{}", e.what());
  }
  for (CLI::App* leaf : line.leaves) {
    if (!leaf->parsed()) continue;
    arguments.command = leaf->get_parent() == &line.app ? leaf->get_name() : leaf->get_parent()->get_name();
    if (leaf->get_parent() == line.bench) arguments.bench.what = leaf->get_name();
    if (leaf->get_parent() == line.kernels) arguments.kernels.what = leaf->get_name();
    describe(*leaf, file_sources, cli_args, arguments);
  }
  ModelArguments& model = arguments.model;
  model.max_model_len = std::max<int64_t>(model.max_model_len, 0);
  if (model.dtype == "half" || model.dtype == "float16") {
    arguments.notes.push_back(fmt::format("--dtype {}: there are no float16 activations; bfloat16 is used", model.dtype));
    model.dtype = "bfloat16";
  }
  if (model.dtype == "float") model.dtype = "float32";
  if (model.max_logprobs < 0 || model.max_logprobs > kMaxLogprobs) {
    arguments.notes.push_back(fmt::format("--max-logprobs {}: a step keeps {} for each token, requests may ask for so many",
                                          model.max_logprobs, kMaxLogprobs));
    model.max_logprobs = kMaxLogprobs;
  }
  return arguments;
}

}  // namespace spate
