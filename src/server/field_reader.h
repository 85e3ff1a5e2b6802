// FieldReader: takes the fields of one JSON object, checks their types and limits, and remembers which it was asked
// for.
//
// null counts as absent. The first problem is kept and later calls give nothing, so that a parser reads straight down
// and asks for the error once, at the end. The reader of a whole request checks it against request_table.h first.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"
#include "server/request_table.h"

namespace spate {

class FieldReader {
 public:
  // `object` outlives the reader. `path` names it in messages: "messages[3]"; empty for the request itself.
  explicit FieldReader(const nlohmann::ordered_json& object, std::string path = {});
  // The request itself: every field is checked against the table at once.
  FieldReader(const nlohmann::ordered_json& object, RequestKind kind, const ParseLimits& limits);

  const nlohmann::ordered_json* any(std::string_view name);
  const nlohmann::ordered_json* array(std::string_view name);
  const nlohmann::ordered_json* object(std::string_view name);
  std::optional<std::string> string(std::string_view name);
  std::optional<bool> boolean(std::string_view name);
  std::optional<double> number(std::string_view name);
  // A number without a fraction, in [low, high].
  std::optional<int64_t> integer(std::string_view name, int64_t low = std::numeric_limits<int64_t>::min(),
                                 int64_t high = std::numeric_limits<int64_t>::max());
  std::vector<int32_t> token_ids(std::string_view name, size_t max_count);

  // What `inner`, the reader of a field's object, was not asked for counts among the unknown fields of this request.
  void adopt_unknown(const FieldReader& inner);
  // The field is known and has no effect here.
  void ignore(std::initializer_list<std::string_view> names);
  void fail(ApiError error);
  void fail(std::string_view name, const std::string& message) { fail(bad_request(path_of(name), message)); }
  void fail_type(std::string_view name, std::string_view wanted, const nlohmann::ordered_json& found);

  bool has_error() const { return error_.has_value(); }
  const ApiError& error() const { return *error_; }
  std::string path_of(std::string_view name) const;
  std::vector<std::string> unknown_fields() const;
  std::vector<std::string> no_effect_fields() const;  // of the table, set in this request

 private:
  void check_field(const RequestField& field, const nlohmann::ordered_json& value, const ParseLimits& limits);

  const nlohmann::ordered_json& object_;
  std::string path_;
  uint32_t kind_ = 0;  // RequestKind; 0: not a whole request
  std::set<std::string, std::less<>> known_;
  std::vector<std::string> inner_unknown_;
  std::optional<ApiError> error_;
};

// A value for a message: short, valid UTF-8.
std::string json_excerpt(const nlohmann::ordered_json& value);

}  // namespace spate
