// The keys of config.json that say how heads are rotated, in both spellings.
#pragma once

#include "weights/family_classes.h"
#include "weights/json_fields.h"

namespace spate {

// Into config.rope; config has max_position_embeddings.
void read_rope(JsonFields& fields, const FamilyClass& family, ModelConfig& config);

}  // namespace spate
