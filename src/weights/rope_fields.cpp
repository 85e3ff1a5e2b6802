#include "weights/rope_fields.h"

#include <algorithm>
#include <optional>

namespace spate {
namespace {

constexpr std::string_view kRopeTypeNames[] = {"default", "linear", "dynamic", "yarn", "llama3"};

bool read_rope_type(JsonFields& fields, RopeConfig& rope) {
  const std::string_view key = fields.has("rope_type") || fields.is_null("rope_type") ? "rope_type" : "type";
  if (fields.is_null(key)) {
    fields.problem(fmt::format("{}{} is null, needs one of {}", fields.prefix(), key, fmt::join(kRopeTypeNames, ", ")));
    return false;
  }
  std::string type = "default";
  fields.read(key, type);
  for (size_t i = 0; i < std::size(kRopeTypeNames); ++i) {
    if (type != kRopeTypeNames[i]) continue;
    rope.type = static_cast<RopeType>(i);
    return true;
  }
  fields.problem(fmt::format("rope type \"{}\" is not one of {}", type, fmt::join(kRopeTypeNames, ", ")));
  return false;
}

void read_rope_scaling(JsonFields& fields, RopeConfig& rope) {
  if (!read_rope_type(fields, rope)) return;
  fields.read("rope_theta", rope.theta, 1.001, 1e12);
  fields.read("partial_rotary_factor", rope.partial_rotary_factor, 0.01, 1.0);
  if (rope.type == RopeType::kDefault) return;  // transformers looks at no other key
  const auto require = [&](std::string_view key) {
    if (fields.has(key)) return;
    // YaRN's factor alone may be null: it is derived.
    if (rope.type == RopeType::kYarn && fields.is_null(key)) return;
    fields.problem(fmt::format("{}{} is {}, and rope type \"{}\" needs it", fields.prefix(), key,
                               fields.is_null(key) ? "null" : "missing", rope_type_name(rope.type)));
  };
  require("factor");
  rope.factor = 0;
  fields.read("factor", rope.factor, 1.0, 1e6);
  fields.read("original_max_position_embeddings", rope.original_max_position_embeddings, 1, int64_t{1} << 28);
  if (rope.type == RopeType::kYarn) {
    fields.read("beta_fast", rope.beta_fast, 1e-3, 1e6);
    fields.read("beta_slow", rope.beta_slow, 1e-3, 1e6);
    fields.read("attention_factor", rope.attention_factor, 1e-3, 1e3);
    fields.read("mscale", rope.mscale, 0.0, 1e3);
    fields.read("mscale_all_dim", rope.mscale_all_dim, 0.0, 1e3);
    rope.truncate = !fields.is_null("truncate");  // null counts as false
    fields.read("truncate", rope.truncate);
  } else if (rope.type == RopeType::kLlama3) {
    require("low_freq_factor");
    require("high_freq_factor");
    fields.read("low_freq_factor", rope.low_freq_factor, 1e-3, 1e6);
    fields.read("high_freq_factor", rope.high_freq_factor, 1e-3, 1e6);
    if (rope.high_freq_factor <= rope.low_freq_factor) {
      fields.problem(fmt::format("rope high_freq_factor is {}, needs more than low_freq_factor {}",
                                 rope.high_freq_factor, rope.low_freq_factor));
    }
  }
}

// transformers: a rope_scaling with a key in it replaces rope_parameters, theta included.
std::optional<JsonFields> rope_object(JsonFields& fields) {
  for (const std::string_view key : {"rope_scaling", "rope_parameters"}) {
    std::optional<JsonFields> rope = fields.object(key);
    if (!rope || rope->empty()) continue;
    rope->refuse_repeated_keys();
    return rope;
  }
  return std::nullopt;
}

}  // namespace

std::string_view rope_type_name(RopeType type) { return kRopeTypeNames[static_cast<size_t>(type)]; }

void read_rope(JsonFields& fields, const FamilyClass& family, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  fields.read("rope_theta", rope.theta, 1.001, 1e12);
  fields.read("partial_rotary_factor", rope.partial_rotary_factor, 0.01, 1.0);
  std::optional<JsonFields> object = rope_object(fields);
  if (object && (object->has("full_attention") || object->has("sliding_attention"))) {
    fields.problem(fmt::format("{} differs between layer types, which no supported model needs",
                               object->prefix().substr(0, object->prefix().size() - 1)));
  } else if (object) {
    read_rope_scaling(*object, rope);
  }
  const bool has_own_theta = object && object->has("rope_theta");
  if ((object && object->is_null("rope_theta")) || (!has_own_theta && fields.is_null("rope_theta"))) {
    fields.problem("rope_theta is null, needs a number");
  }
  if (rope.partial_rotary_factor != 1.0 && family.partial_rotary_factor == 0) {
    // With plain RoPE the classes of these families rotate the whole head nevertheless, with scaled RoPE they fail.
    fields.problem(fmt::format("partial_rotary_factor is {}, needs 1: {} in transformers has no partial rotation",
                               rope.partial_rotary_factor, config.architecture));
  }
  fields.read("original_max_position_embeddings", rope.original_max_position_embeddings, 1, int64_t{1} << 28);
  if (rope.original_max_position_embeddings == 0)
    rope.original_max_position_embeddings = config.max_position_embeddings;
  if (rope.factor == 0) {
    rope.factor = static_cast<double>(config.max_position_embeddings) /
                  static_cast<double>(std::max<int64_t>(rope.original_max_position_embeddings, 1));
  }
}

}  // namespace spate
