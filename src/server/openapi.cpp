#include "server/openapi.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "server/http_message.h"
#include "server/request_table.h"
#include "server/routes.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;

Json schema_of(FieldType type) {
  switch (type) {
    case FieldType::kString:
      return {{"type", {"string", "null"}}};
    case FieldType::kBoolean:
      return {{"type", {"boolean", "null"}}};
    case FieldType::kInteger:
      return {{"type", {"integer", "null"}}};
    case FieldType::kNumber:
      return {{"type", {"number", "null"}}};
    case FieldType::kArray:
      return {{"type", {"array", "null"}}};
    case FieldType::kObject:
      return {{"type", {"object", "null"}}};
    case FieldType::kTokenIds:
      return {{"type", {"array", "null"}}, {"items", {{"type", "integer"}, {"minimum", 0}}}};
    case FieldType::kStrings:
      return {{"type", {"string", "array", "null"}}, {"items", {{"type", "string"}}}};
    case FieldType::kAny:
      break;
  }
  return Json::object();
}

Json request_schema(uint32_t kind) {
  Json properties = Json::object(), required = Json::array();
  for (const RequestField& field : request_fields()) {
    if ((field.kinds & kind) == 0 || field.use == FieldUse::kUnsupported) continue;
    Json schema = schema_of(field.type);
    if (!std::isinf(field.low)) schema["minimum"] = field.low;
    if (!std::isinf(field.high)) schema["maximum"] = field.high;
    std::string text(field.help);
    if (field.use == FieldUse::kNoEffect) text = "No effect. " + text;
    if (!field.default_text.empty()) text += fmt::format(" Default: {}.", field.default_text);
    schema["description"] = text;
    properties[std::string(field.name)] = std::move(schema);
    if (field.required_by & kind) required.push_back(field.name);
  }
  Json schema{{"type", "object"}, {"properties", std::move(properties)}};
  if (!required.empty()) schema["required"] = std::move(required);
  return schema;
}

Json operation_of(const Route& route, std::string_view summary) {
  const Json error{{"$ref", "#/components/schemas/Error"}};
  const Json error_response{{"description", "An error"}, {"content", {{"application/json", {{"schema", error}}}}}};
  Json operation{{"summary", summary},
                 {"responses", {{"200", {{"description", "The answer"}}}, {"default", error_response}}}};
  if (route.needs_key) operation["security"] = Json::array({{{"key", Json::array()}}, Json::object()});
  if (route.request_kind != 0) {
    operation["requestBody"] = {{"required", true},
                                {"content", {{"application/json", {{"schema", request_schema(route.request_kind)}}}}}};
  }
  return operation;
}

// "[0, 2]", ">= 1"
std::string bounds_text(const RequestField& field) {
  const auto number = [](double bound) { return fmt::format("{:g}", bound); };
  const bool has_high = !std::isinf(field.high) && field.high < INT32_MAX;
  if (std::isinf(field.low) || field.low <= INT32_MIN) return "";
  if (field.high_limit != nullptr) return fmt::format("{} to the server's limit", number(field.low));
  return has_high ? fmt::format("{} to {}", number(field.low), number(field.high)) : "at least " + number(field.low);
}

void append_fields(std::string& out, uint32_t kind, FieldUse use) {
  const bool is_read = use == FieldUse::kRead;
  out += is_read ? "| Field | Type | Range | Default | Name of | |\n|---|---|---|---|---|---|\n"
                 : "| Field | Name of | |\n|---|---|---|\n";
  for (const RequestField& field : request_fields()) {
    if ((field.kinds & kind) == 0 || field.use != use) continue;
    if (is_read) {
      const char* mark = field.required_by & kind ? " (required)" : "";
      out += fmt::format("| `{}`{} | {} | {} | {} | {} | {} |\n", field.name, mark, field_type_text(field.type),
                         bounds_text(field), field.default_text, field.dialect, field.help);
    } else {
      out += fmt::format("| `{}` | {} | {} |\n", field.name, field.dialect, field.help);
    }
  }
  out += "\n";
}

bool has_fields(uint32_t kind, FieldUse use) {
  for (const RequestField& field : request_fields()) {
    if ((field.kinds & kind) && field.use == use) return true;
  }
  return false;
}

}  // namespace

std::string openapi_json(std::string_view version) {
  Json paths = Json::object();
  std::string summary;
  for (const Route& route : routes()) {
    if (route.help[0] != '\0') summary = route.help;
    const std::string method = lower_case(route.method);
    paths[route.path][method] = operation_of(route, summary);
  }
  const Json id{{"name", "id"}, {"in", "path"}, {"required", true}, {"schema", {{"type", "string"}}}};
  for (const Route& route : id_routes()) {
    const std::string method = lower_case(route.method);
    paths[route.path][method] = operation_of(route, route.help);
    paths[route.path][method]["parameters"] = Json::array({id});
  }
  const Json text{{"type", "string"}};
  const Json envelope{{"type", "object"},
                      {"required", {"error"}},
                      {"properties",
                       {{"error",
                         {{"type", "object"},
                          {"required", {"message", "type"}},
                          {"properties",
                           {{"message", text},
                            {"type", text},
                            {"param", {{"type", {"string", "null"}}}},
                            {"code", Json::object()}}}}}}}};
  Json document{
      {"openapi", "3.1.0"},
      {"info", {{"title", "Spate"}, {"version", version}}},
      {"paths", std::move(paths)},
      {"components",
       {{"schemas", {{"Error", envelope}}}, {"securitySchemes", {{"key", {{"type", "http"}, {"scheme", "bearer"}}}}}}}};
  return document.dump();
}

std::string api_reference_markdown() {
  std::string out =
      "# The HTTP API\n\n"
      "`spate help api` prints this page from the tables in `src/server/routes.cpp` and "
      "`src/server/request_table.cpp`; a\n"
      "test compares the two. A running server has the same as `/openapi.json`.\n\n"
      "Of every field: `null` is the same as absent. A bad value is a 400 that names the field and the bound. A field "
      "that\n"
      "nobody knows is ignored, with one line in the server's log for each name. Errors are\n"
      "`{\"error\": {\"message\", \"type\", \"param\", \"code\"}}`, in streams too.\n\n"
      "## Paths\n\n| Path | Method | |\n|---|---|---|\n";
  for (const Route& route : routes()) {
    out += fmt::format("| `{}` | {} | {} |\n", route.path, route.method,
                       route.help[0] == '\0' ? "the same as the one before" : route.help);
  }
  for (const Route& route : id_routes())
    out += fmt::format("| `{}` | {} | {} |\n", route.path, route.method, route.help);
  out +=
      "\n### Paths of other servers\n\nThey answer 404 with this text. An unknown path is tried again without a slash "
      "at its "
      "end and without\nrepeated ones.\n\n| Path | Of | |\n|---|---|---|\n";
  for (const ForeignPath& foreign : foreign_paths())
    out += fmt::format("| `{}` | {} | {} |\n", foreign.path, foreign.dialect, foreign.help);
  for (const Route& route : routes()) {
    if (route.request_kind == 0 || route.help[0] == '\0') continue;
    out += fmt::format("\n## {} {}\n\n", route.method, route.path);
    append_fields(out, route.request_kind, FieldUse::kRead);
    if (has_fields(route.request_kind, FieldUse::kNoEffect)) {
      out += "Accepted, without an effect:\n\n";
      append_fields(out, route.request_kind, FieldUse::kNoEffect);
    }
    if (has_fields(route.request_kind, FieldUse::kUnsupported)) {
      out += "Refused with 400 when they ask for something:\n\n";
      append_fields(out, route.request_kind, FieldUse::kUnsupported);
    }
    out.pop_back();
  }
  return out;
}

}  // namespace spate
