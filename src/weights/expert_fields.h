// The keys of config.json that say which layers are of experts, and how these are chosen.
#pragma once

#include "weights/family_classes.h"
#include "weights/json_fields.h"

namespace spate {

// Into config.experts, and what the same keys say beside: config.num_mtp_layers. config has the sizes and the window.
void read_experts(JsonFields& fields, const FamilyClass& family, ModelConfig& config);

}  // namespace spate
