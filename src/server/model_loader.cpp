#include "server/model_loader.h"

#include <new>

namespace spate {

Result<ServingModel> load_or_error(const std::string& what, const std::function<Result<ServingModel>()>& load) {
  try {
    return load();
  } catch (const std::bad_alloc&) {
    return resource_exhausted("{}: the memory of this machine does not suffice for the model", what);
  } catch (const std::exception& e) {
    return internal_error("{}: {}", what, e.what());
  }
}

}  // namespace spate
