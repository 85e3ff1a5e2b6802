// FamilyClass: the families of models that config.json may name, with what each leaves out.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "weights/model_config.h"

namespace spate {

// Whose keys say what a model's experts are.
enum class ExpertKeys : uint8_t { kNone, kMixtral, kQwen, kErnie, kDeepseekV2, kDeepseekV3 };

// What a family's configuration class in transformers assumes when config.json is silent. Llama's values, where a
// family has no own. A null is not silence: it means "none" or "derived" where the class allows it, else it is refused.
struct FamilyClass {
  std::string_view model_type;
  std::string_view architecture;
  std::string_view other_architecture = "";  // another spelling of it
  int64_t vocab_size = 32000, hidden_size = 4096, intermediate_size = 11008, num_layers = 32, num_heads = 32;
  int64_t num_kv_heads = 0;  // 0: num_heads
  int64_t head_dim = 0;      // 0: hidden_size / num_heads
  int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  bool tie_word_embeddings = false;
  int64_t sliding_window = 0;                  // 0: the family has no window
  int32_t bos_token_id = 1, eos_token_id = 2;  // -1: none
  bool has_window_switch = false;              // use_sliding_window, max_window_layers (28)
  std::string_view nullable;                   // which of num_key_value_heads and head_dim may be null
  bool may_slide = false;                      // config.json may give a window, though the class has none
  ExpertKeys expert_keys = ExpertKeys::kNone;
  ExpertConfig experts;
  LatentConfig latent;
  double partial_rotary_factor = 0;  // 0: heads are rotated whole, and config.json may not say otherwise
};

// Never empty.
std::span<const FamilyClass> family_classes();

}  // namespace spate
