// The request fields that several endpoints share. Internal to the server's parsers.
#pragma once

#include "server/api_request.h"
#include "server/field_reader.h"

namespace spate {

// Checked before a list is translated: what is made of an entry takes more memory than the entry.
constexpr size_t kMaxMessages = 65536;
constexpr size_t kMaxTools = 1024;
void check_count(FieldReader& fields, std::string_view name, const nlohmann::ordered_json& list, size_t max_count);

// Sampling, streaming, logprob-independent options. `request` gets the defaults first.
void read_common_fields(FieldReader& fields, const ParseLimits& limits, ApiRequest& request);
// messages, tools, template options; `request` is complete afterwards but for the common fields.
void read_conversation(FieldReader& fields, ChatRequest& request);
// -1 is the size of the vocabulary, where the server allows it.
std::optional<int> read_logprobs_count(FieldReader& fields, std::string_view name, const ParseLimits& limits);
// Ranges (core/sampling_params.h), once max_tokens and logprobs are read.
void check_sampling(FieldReader& fields, const ParseLimits& limits, ApiRequest& request);
// `value` is a string, an array of strings, of token ids or of arrays of token ids: the field `name`.
void read_texts_or_tokens(FieldReader& fields, std::string_view name, const nlohmann::ordered_json& value,
                          std::vector<TextOrTokens>& out);
constexpr size_t kMaxPrompts = 2048;  // of a request
// truncate_prompt_tokens and truncation_side; priority, cache_salt and request_id.
void read_truncation(FieldReader& fields, ApiRequest& request);
void read_scheduling(FieldReader& fields, ApiRequest& request);
// Names for the log.
void take_ignored_fields(const FieldReader& fields, ApiRequest& request);

}  // namespace spate
