#include "backend/product_tuning.h"

namespace spate {

ProductTuningDevice* product_tuning_device(Device& device) { return dynamic_cast<ProductTuningDevice*>(&device); }

}  // namespace spate
