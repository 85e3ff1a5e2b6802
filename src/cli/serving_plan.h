// ServingPlan: the models that `spate serve` was given, each with its arguments and its part of the memory.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/arguments.h"
#include "server/model_loader.h"

namespace spate {

struct ServingPlan {
  std::vector<Arguments> models;         // the first is the default of requests
  std::vector<int64_t> kv_cache_bytes;   // of each at most; 0: no limit
  std::vector<std::string> lines;        // how the memory is shared; empty with one model
};

// Before any weights are read. Errors name the flag, and what is free, needed and to lower where a model does not fit.
Result<ServingPlan> plan_serving(const Arguments& arguments);

// Loads a model and starts its engine, which then owns all of it. `tracer` gets its traces; null: none. Where the model
// may be unloaded in between, ServingModel::reload does the same again.
Result<ServingModel> load_serving_model(const Arguments& arguments, int64_t max_kv_cache_bytes,
                                        std::shared_ptr<Tracer> tracer, const std::function<void(double)>& progress);

// For /admin/models/load. What concerns the machine is as in `common`.
ModelLoader model_loader(const Arguments& common, std::shared_ptr<Tracer> tracer);

}  // namespace spate
