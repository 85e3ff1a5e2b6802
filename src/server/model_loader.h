// What a server needs to load models while it runs. Filled by the program, which knows how models are loaded.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "server/serving_model.h"

namespace spate {

// "name=PATH,key=value": a model beside others and its settings.
struct ModelSpec {
  std::string name;
  std::vector<std::string> aliases;
  std::string path;
  std::vector<std::pair<std::string, std::string>> settings;  // flags without their dashes, and their values
};

struct ModelLoader {
  // What is wrong with the settings, before the name is taken.
  std::function<Status(const ModelSpec& spec)> check;
  // The engine is started and owns all that it needs: when the last pointer to it goes, the model's memory is free.
  // resource_exhausted: it does not fit beside the others. Called by one thread at a time.
  std::function<Result<ServingModel>(const ModelSpec& spec, const std::function<void(double)>& progress)> load;
};

// What `load` gives. Nothing that a model's files can provoke ends the server, which answers for others: an exception
// is an error that names `what`.
Result<ServingModel> load_or_error(const std::string& what, const std::function<Result<ServingModel>()>& load);

}  // namespace spate
