// The choices that a device's products leave open: they change how a product is shared out, not what it computes beyond
// the order of its sums. spate kernels tune times them and has the device keep the fastest; beside the op catalogue
// (backend/ops.h). A deterministic device has no choices.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"

namespace spate {

struct ProductShape {
  std::string kernel;
  int64_t out_features = 0;
  int64_t num_steps = 0;  // of k, in the kernel's unit
  int64_t num_tokens = 0;
  bool operator==(const ProductShape&) const = default;
};

class ProductTuningDevice {
 public:
  virtual ~ProductTuningDevice() = default;

  // What was launched last, where it has choices; forgets it.
  virtual std::optional<ProductShape> take_last_product() = 0;
  // In words. The first is what runs where nothing is kept.
  virtual std::vector<std::string> choices(const ProductShape& shape) const = 0;
  // Products of this shape run so from now on.
  virtual void try_choice(const ProductShape& shape, int choice_idx) = 0;
  virtual void end_trials() = 0;
  // For steps of min_num_tokens to shape.num_tokens; choice 0 forgets what was kept.
  virtual void keep_choice(const ProductShape& shape, int64_t min_num_tokens, int choice_idx) = 0;
  // For later starts on such a device. Where it is kept.
  virtual Result<std::string> save_choices() = 0;
};

// Null where the device has no choices.
ProductTuningDevice* product_tuning_device(Device& device);

}  // namespace spate
