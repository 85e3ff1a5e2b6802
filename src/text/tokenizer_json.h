// How the parts of a tokenizer.json become the parts of a Tokenizer. Internal to the JSON loader: includes simdjson,
// so that only its two .cpp files include it.
#pragma once

#include <simdjson.h>

#include <string>
#include <string_view>

#include "base/status.h"
#include "text/tokenizer_parts.h"

namespace spate::tokenizer_json {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

// Fields of an object. `where` names the object in errors ("pre_tokenizer Split").
Result<object> as_object(element value, std::string_view where);
Result<array> as_array(element value, std::string_view where);
Result<std::string_view> as_string(element value, std::string_view where);
Result<element> require_field(object from, std::string_view name, std::string_view where);
Result<std::string_view> require_string(object from, std::string_view name, std::string_view where);
Result<array> require_array(object from, std::string_view name, std::string_view where);
Result<int64_t> require_int(object from, std::string_view name, std::string_view where);
// Absent and null give the default; another type is an error.
Result<bool> bool_or(object from, std::string_view name, bool if_absent, std::string_view where);
Result<std::string_view> string_or(object from, std::string_view name, std::string_view if_absent,
                                   std::string_view where);

Status parse_normalizer(element value, int depth, Normalizer& normalizer);
Status parse_pre_tokenizer(element value, int depth, PreTokenizer& pre_tokenizer);
Status parse_post_processor(element value, int depth, PostProcessor& post_processor);
Status parse_decoder(element value, int depth, TokenDecoder& decoder);
// Fills parts.vocabulary and parts.model; may take the byte map off parts.pre_tokenizer, which must be complete.
Status parse_model(element value, TokenizerParts& parts);

constexpr int kMaxSequenceDepth = 16;  // of Sequence in Sequence; published files have one

}  // namespace spate::tokenizer_json
