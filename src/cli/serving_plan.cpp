#include "cli/serving_plan.h"

#include <map>

#include "base/log.h"
#include "cli/find_models.h"
#include "cli/llm_arguments.h"
#include "cli/serving.h"
#include "llm/loaded_model.h"
#include "llm/memory_share.h"
#include "server/model_registry.h"
#include "server/output_format.h"

namespace spate {
namespace {

std::string describe_defaults(const SamplingDefaults& d, const std::string& source) {
  std::string text;
  const auto add = [&](const char* name, const auto& value) {
    if (value) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, *value);
  };
  add("temperature", d.temperature);
  add("top_p", d.top_p);
  add("top_k", d.sampling_top_k);
  add("min_p", d.min_p);
  add("repetition_penalty", d.repetition_penalty);
  add("max_tokens", d.max_tokens);
  return text.empty() ? "the API's" : text + " (" + source + ")";
}

// "reasoning qwen3, tool calls hermes"
std::string describe_parsers(const ServingModel& serving) {
  const std::string source = serving.chat_template ? serving.chat_template->source() : "";
  const auto reasoning = find_reasoning_format(serving.reasoning_parser, source);
  const auto tools = find_tool_format(serving.tool_call_parser, source);
  const auto name_of = [](const auto& found) { return found.ok() && *found ? first_name((*found)->names) : "none"; };
  return fmt::format("reasoning {}, tool calls {}", name_of(reasoning), name_of(tools));
}

// As load_model() names it where nobody else does.
std::vector<std::string> names_of(const Arguments& arguments) {
  if (!arguments.serve.served_model_names.empty()) return arguments.serve.served_model_names;
  return {arguments.model.hub_name.empty() ? model_name(arguments.model.model) : arguments.model.hub_name};
}
std::string first_name_of(const Arguments& arguments) { return names_of(arguments).front(); }

// Before any weights are read, which may take minutes.
Status check_served_names(const std::vector<Arguments>& models) {
  std::map<std::string, const Arguments*> owners;
  for (const Arguments& arguments : models) {
    RETURN_IF_ERROR(check_model_names(names_of(arguments)));
    for (const std::string& name : names_of(arguments)) {
      const auto [found, is_new] = owners.emplace(name, &arguments);
      if (is_new || found->second == &arguments) continue;
      return invalid_argument("--model: {} and {} are both named {}; --served-model-name names the first, NAME=PATH the others",
                              found->second->model.model, arguments.model.model, name);
    }
  }
  return ok_status();
}

Result<MemoryShares> share_memory_of(const std::vector<Arguments>& models) {
  std::vector<ModelNeed> needs;
  for (const Arguments& arguments : models) {
    ASSIGN_OR_RETURN(const LlmConfig llm, llm_config(arguments.model));
    Result<ModelNeed> need = model_need(first_name_of(arguments), llm);
    if (!need.ok()) return need.status().with_context(first_name_of(arguments));
    needs.push_back(std::move(need).value());
  }
  return share_memory(needs);
}

}  // namespace

Result<ServingPlan> plan_serving(const Arguments& arguments) {
  ServingPlan plan;
  if (!arguments.model.model.empty()) plan.models.push_back(arguments);
  for (const ModelSpec& spec : arguments.serve.specs) {
    ASSIGN_OR_RETURN(Arguments model, arguments_of_model(spec, arguments));
    plan.models.push_back(std::move(model));
  }
  for (Arguments& model : plan.models) {
    RETURN_IF_ERROR(check_serving(model));
    const std::string name = first_name_of(model);
    if (const Status status = find_models(model.model); !status.ok()) {
      return plan.models.size() > 1 ? status.with_context("--model " + name) : status;
    }
  }
  RETURN_IF_ERROR(check_served_names(plan.models));
  plan.kv_cache_bytes.resize(plan.models.size());
  if (plan.models.size() == 1) return plan;
  ASSIGN_OR_RETURN(MemoryShares shares, share_memory_of(plan.models));
  plan.kv_cache_bytes = std::move(shares.kv_cache_bytes);
  plan.lines = std::move(shares.lines);
  return plan;
}

Result<ServingModel> load_serving_model(const Arguments& arguments, int64_t max_kv_cache_bytes,
                                        std::shared_ptr<Tracer> tracer, const std::function<void(double)>& progress) {
  ASSIGN_OR_RETURN(LlmConfig llm, llm_config(arguments.model));
  llm.max_kv_cache_bytes = max_kv_cache_bytes;
  ASSIGN_OR_RETURN(std::shared_ptr<LoadedModel> model, load_model(llm, progress));
  if (!model->tokenizer) {
    return not_found("{}: serve needs a tokenizer.json; use --tokenizer with a folder that has one", arguments.model.model);
  }
  for (const std::string& line : model->summary) log_info("serve", "{}", line);
  model->engine->start();
  ASSIGN_OR_RETURN(ServingModel serving, serving_model(arguments, *model));
  serving.engine = std::shared_ptr<Engine>(model, model->engine.get());
  serving.tracer = tracer;
  serving.idle_unload_seconds = arguments.serve.idle_unload_seconds;
  if (serving.idle_unload_seconds > 0 || arguments.serve.enable_admin) {
    serving.reload = [arguments, max_kv_cache_bytes, tracer](const std::function<void(double)>& reload_progress) {
      return load_serving_model(arguments, max_kv_cache_bytes, tracer, reload_progress);
    };
  }
  if (serving.idle_unload_seconds > 0) {
    log_info("serve", "{} is unloaded after {:g} s without a request, and loaded again by the next one",
             serving.names.front(), serving.idle_unload_seconds);
  }
  log_info("serve", "parsers: {}", describe_parsers(serving));
  log_info("serve", "sampling defaults: {}", describe_defaults(serving.defaults, serving.defaults_source));
  return serving;
}

ModelLoader model_loader(const Arguments& common, std::shared_ptr<Tracer> tracer) {
  const auto arguments_of = [common](const ModelSpec& spec) -> Result<Arguments> {
    ASSIGN_OR_RETURN(Arguments arguments, arguments_of_model(spec, common));
    RETURN_IF_ERROR(check_serving(arguments));
    RETURN_IF_ERROR(find_models(arguments.model));
    return arguments;
  };
  return {.check = [arguments_of](const ModelSpec& spec) { return arguments_of(spec).status(); },
          .load = [arguments_of, tracer = std::move(tracer)](
                      const ModelSpec& spec, const std::function<void(double)>& progress) -> Result<ServingModel> {
            ASSIGN_OR_RETURN(const Arguments arguments, arguments_of(spec));
            // What the others have is not free any more, so it is shared with nobody.
            const Result<MemoryShares> shares = share_memory_of({arguments});
            if (!shares.ok()) return shares.status();
            for (const std::string& line : shares->lines) log_info("serve", "{}", line);
            return load_serving_model(arguments, shares->kv_cache_bytes.front(), tracer, progress);
          }};
}

}  // namespace spate
