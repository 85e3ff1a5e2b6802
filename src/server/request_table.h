// The table of request fields: every top-level field that a client may send, by endpoint.
//
// FieldReader checks a request against it before a parser reads a value: types, bounds and missing fields are refused
// by name; known fields that this server has not built are a 400; fields without an effect and unknown names are listed
// for the log. /openapi.json and docs/api.md are printed from it. A parser that reads a field the table lacks fails a
// CHECK.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

namespace spate {

struct ParseLimits;

// Bits: a field may belong to several.
enum RequestKind : uint32_t {
  kChatRequest = 1 << 0,
  kCompletionRequest = 1 << 1,
  kTokenizeRequest = 1 << 2,
  kDetokenizeRequest = 1 << 3,
  kMessagesRequest = 1 << 4,
  kCountTokensRequest = 1 << 5,
  kResponsesRequest = 1 << 6,
  kTokensRequest = 1 << 7,  // /inference/v1/generate
  kEmbeddingsRequest = 1 << 8,
  kAllowedTokensRequest = 1 << 9,
  kScoreRequest = 1 << 10,
  kRerankRequest = 1 << 11,
  kAbortRequest = 1 << 12,
};
constexpr uint32_t kGenerationRequests = kChatRequest | kCompletionRequest;

enum class FieldType : uint8_t {
  kAny,
  kString,
  kBoolean,
  kInteger,
  kNumber,
  kArray,
  kObject,
  kTokenIds,
  kStrings,  // a string or an array of strings
};

enum class FieldUse : uint8_t {
  kRead,
  kNoEffect,     // accepted; `help` says why nothing changes
  kUnsupported,  // 400 unless it is null, empty, false or 0, or `neutral` where that is given (1: true)
};

struct RequestField {
  std::string_view name;
  uint32_t kinds = 0;  // RequestKind bits
  FieldType type = FieldType::kAny;
  FieldUse use = FieldUse::kRead;
  std::string_view dialect;  // whose name it is: OpenAI, vLLM, FastDeploy, llama-server, SGLang
  std::string_view help;
  std::string_view default_text = {};
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  int ParseLimits::*high_limit = nullptr;  // bound known at run time, instead of `high`
  double neutral = std::numeric_limits<double>::quiet_NaN();  // asks for nothing, also where it is out of bounds
  uint32_t required_by = 0;  // RequestKind bits
};

std::span<const RequestField> request_fields();
const RequestField* find_request_field(std::string_view name, uint32_t kind);
std::string_view field_type_text(FieldType type);  // "an integer"
bool has_type(const nlohmann::ordered_json& value, FieldType type);

}  // namespace spate
