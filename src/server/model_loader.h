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

}  // namespace spate
