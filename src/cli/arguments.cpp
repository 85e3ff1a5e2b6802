#include "cli/arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/version.h"
#include "cli/config_file.h"
#include "cli/flag_help.h"
#include "cli/flags.h"
#include "cli/model_spec.h"
#include "cli/shell_completion.h"
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
  const size_t end = std::min(arg.find_first_of("=."), arg.size());
  std::string out = arg;
  std::replace(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(end), '_', '-');
  return out;
}

// vLLM's spelling of JSON by its fields, --x.a.b 1 --x.c=two, as --x '{"a": {"b": 1}, "c": "two"}' behind the others.
Status join_fields(std::vector<std::string>& args) {
  using Json = nlohmann::ordered_json;
  std::map<std::string, Json> objects;
  std::vector<std::string> others;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    const size_t equals = std::min(arg.find('='), arg.size()), dot = arg.find('.');
    if (args[i] == "--") {
      others.insert(others.end(), args.begin() + static_cast<std::ptrdiff_t>(i), args.end());
      break;
    }
    if (arg.rfind("--", 0) != 0 || dot == std::string::npos || dot > equals) {
      others.push_back(arg);
      continue;
    }
    const std::string flag = arg.substr(0, dot);
    const bool has_value = equals < arg.size() || i + 1 < args.size();
    if (!has_value) return invalid_argument("{} needs a value", arg);
    std::string path = "/" + arg.substr(dot + 1, equals - dot - 1);
    std::replace(path.begin(), path.end(), '.', '/');
    if (path.back() == '/' || path.back() == '+' || path.find("//") != std::string::npos ||
        path.find('~') != std::string::npos) {
      return invalid_argument("{}: fields are named as in {}.name.name VALUE; lists are given as JSON",
                              arg.substr(0, equals), flag);
    }
    const std::string text = equals < arg.size() ? arg.substr(equals + 1) : args[++i];
    const Json value = Json::parse(text, nullptr, false);
    try {
      Json& object = objects.try_emplace(flag, Json::object()).first->second;
      object[Json::json_pointer(path)] = value.is_discarded() ? Json(text) : value;
    } catch (const Json::exception&) {
      return invalid_argument("{} is not an object, of which {} is a field", flag, arg.substr(0, equals));
    }
  }
  for (const auto& [flag, object] : objects) {
    for (const std::string& arg : others) {
      if (arg != flag && arg.rfind(flag + "=", 0) != 0) continue;
      return invalid_argument("{} is given as JSON and by its fields; give one of them", flag);
    }
    others.insert(others.end(), {flag, object.dump(-1, ' ', false, Json::error_handler_t::replace)});
  }
  args = std::move(others);
  return ok_status();
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
  add_model_flags(serve, arguments.model, true, &arguments.serve.models);
  add_serve_flags(serve, arguments.serve);
  CLI::App* run = add_command("run", "Start the engines of a file, keep them running, serve graphs of steps over them");
  add_run_flags(run, arguments.run);
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
  bench = add_command("bench", "Measure: serve, throughput, latency, limits, kernel, table, grammar");
  add_bench_flags(bench, arguments);
  add_command("completion", "Print a script that lets a shell complete commands and flags: bash, zsh, fish")
      ->add_option("shell", arguments.completion_shell, "bash, zsh or fish")
      ->required();
  leaves = {serve, run, chat, generate, eval, quantize, inspect, self_test};
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
                           name == "prompt" || name == "configs" || (name == "model" && command == serve);
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
  if (args.size() == 2 && args[0] == "completion" && args[1][0] != '-') {
    ASSIGN_OR_RETURN(const std::string script, completion_script(args[1], line.app, line.leaves));
    std::printf("%s", script.c_str());
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

// Values that mean another one.
void normalize(ModelArguments& model, std::vector<std::string>& notes) {
  model.max_model_len = std::max<int64_t>(model.max_model_len, 0);
  if (model.dtype == "half" || model.dtype == "float16") {
    notes.push_back(fmt::format("--dtype {}: there are no float16 activations; bfloat16 is used", model.dtype));
    model.dtype = "bfloat16";
  }
  if (model.dtype == "float") model.dtype = "float32";
}

// Of what --model says, the paths without a name.
std::vector<std::string> bare_models(const std::vector<std::string>& models) {
  std::vector<std::string> bare;
  std::copy_if(models.begin(), models.end(), std::back_inserter(bare), [](const auto& text) { return !is_model_spec(text); });
  return bare;
}

// What --model says: the last path is the model of the other flags; the rest are models beside it.
// `from_file` is one that the command line replaces.
Status split_models(Arguments& arguments, bool from_file) {
  ServeArguments& serve = arguments.serve;
  const std::vector<std::string> bare = bare_models(serve.models);
  if (bare.size() > (from_file ? 2 : 1)) {
    return invalid_argument("--model: {} and {} are two models; give the second as NAME={}", bare[0], bare[1], bare[1]);
  }
  std::set<std::string> names(serve.served_model_names.begin(), serve.served_model_names.end());
  for (const std::string& text : serve.models) {
    if (!is_model_spec(text)) {
      arguments.model.model = text;
      continue;
    }
    ASSIGN_OR_RETURN(ModelSpec spec, parse_model_spec(text));
    std::vector<std::string> own = spec.aliases;
    own.push_back(spec.name);
    for (const std::string& name : own) {
      if (!names.insert(name).second) return invalid_argument("--model {}: the name {} comes twice", text, name);
    }
    RETURN_IF_ERROR(arguments_of_model(spec, arguments).status());
    serve.specs.push_back(std::move(spec));
  }
  if (arguments.model.model.empty() && !serve.served_model_names.empty()) {
    return invalid_argument("--served-model-name names the model that --model gives without NAME=, and there is none");
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

Result<Arguments> arguments_of_model(const ModelSpec& spec, const Arguments& common) {
  const ModelArguments& c = common.model;
  Arguments arguments = common;
  arguments.config_lines.clear();
  arguments.serve.specs.clear();
  arguments.serve.served_model_names = spec.aliases;
  arguments.serve.served_model_names.insert(arguments.serve.served_model_names.begin(), spec.name);
  arguments.serve.reasoning_parser = arguments.serve.tool_call_parser = "auto";
  arguments.model = ModelArguments{.dtype = c.dtype,
                                   .device = c.device,
                                   .mock_script = c.mock_script,
                                   .isa = c.isa,
                                   .kernel_dir = c.kernel_dir,
                                   .threads = c.threads,
                                   .cpu_pin_threads = c.cpu_pin_threads,
                                   .weight_cache = c.weight_cache,
                                   .weight_cache_limit = c.weight_cache_limit,
                                   .distributed_timeout_seconds = c.distributed_timeout_seconds,
                                   .max_num_waiting = c.max_num_waiting,
                                   .max_logprobs = c.max_logprobs,
                                   .seed = c.seed,
                                   .deterministic = c.deterministic};
  CLI::App app;
  app.option_defaults()->always_capture_default();
  add_model_flags(&app, arguments.model, false);
  add_parser_flags(&app, arguments.serve);
  add_idle_flag(&app, arguments.serve);
  const std::string place = "--model " + spec.name;
  std::vector<std::string> args{"--model=" + spec.path};
  std::map<std::string, std::string> sources{{"model", place}};
  for (const auto& [given, value] : spec.settings) {
    std::string key = given;
    std::replace(key.begin(), key.end(), '_', '-');
    const CLI::Option* option = app.get_option_no_throw("--" + key);
    if (option == nullptr || key == "model" || key == "help") {
      return invalid_argument("{}: a model has no setting '{}'; the nearest is '{}'", place, given, nearest_flag(app, key));
    }
    if (!sources.emplace(option->get_lnames().front(), place).second) {
      return invalid_argument("{}: '{}' comes twice", place, given);
    }
    args.push_back(fmt::format("--{}={}", key, value));
  }
  try {
    std::reverse(args.begin(), args.end());  // CLI11 takes them from the back
    app.parse(args);
  } catch (const CLI::ParseError& e) {
    return invalid_argument("{}: {}", place, e.what());
  }
  describe(app, sources, {}, arguments);
  normalize(arguments.model, arguments.notes);
  return arguments;
}

Result<Arguments> parse_arguments(int argc, const char* const* argv) {
  Arguments arguments;
  CommandLine line(arguments);
  std::vector<std::string> cli_args;
  for (int i = 1; i < argc; ++i) cli_args.push_back(with_dashes(argv[i]));
  RETURN_IF_ERROR(join_fields(cli_args));
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
  normalize(arguments.model, arguments.notes);
  RETURN_IF_ERROR(split_models(arguments, file_sources.contains("model")));
  return arguments;
}

}  // namespace spate
