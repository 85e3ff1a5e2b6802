// The body of /abort_requests.
#include <nlohmann/json.hpp>

#include "server/json_parse.h"
#include "server/request_fields.h"
#include "server/request_table.h"

namespace spate {
namespace {

constexpr size_t kMaxIds = 65536;

}  // namespace

ApiResult<AbortRequest> parse_abort_request(std::string_view body) {
  auto json = parse_json(body);
  if (!json.ok()) return json.error();
  FieldReader fields(**json, kAbortRequest, {});
  AbortRequest request;
  request.is_all = fields.boolean("abort_all").value_or(false);
  bool has_ids = request.is_all;
  for (const char* name : {"request_ids", "req_ids"}) {
    const auto* ids = fields.array(name);
    if (ids == nullptr) continue;
    has_ids = true;
    check_count(fields, name, *ids, kMaxIds);
    for (const auto& id : *ids) {
      if (fields.has_error()) break;
      if (!id.is_string()) {
        fields.fail_type(name, "an array of request ids", id);
        break;
      }
      request.request_ids.push_back(id.get<std::string>());
    }
  }
  if (fields.has_error()) return fields.error();
  if (!has_ids) return bad_request("request_ids", "request_ids is missing", "missing_required_parameter");
  return request;
}

}  // namespace spate
