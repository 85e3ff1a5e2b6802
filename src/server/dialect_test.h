// For tests of the dialects: a server whose events have types, and requests of Anthropic's and the other forms.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/test_server.h"

namespace spate {

struct DialectServer : TestServer {
  Json get(const std::string& path, int expected_status = 200) {
    TestClient client(server.port());
    const TestResponse response = client.get(path);
    CHECK(response.status == expected_status);
    return Json::parse(response.body);
  }
  // Each event's type is that of its data.
  std::vector<Json> stream(const std::string& path, Json body) {
    body["stream"] = true;
    TestClient client(server.port());
    return events_of(client.post(path, body.dump()));
  }
  std::vector<Json> stream_of(const std::string& path) {
    TestClient client(server.port());
    return events_of(client.get(path));
  }
  static std::vector<Json> events_of(const TestResponse& response) {
    CHECK(response.status == 200);
    std::vector<Json> events;
    for (size_t pos = 0; pos < response.body.size();) {
      const size_t end = response.body.find("\n\n", pos);
      const std::string event = response.body.substr(pos, end - pos);
      pos = end + 2;
      const size_t data = event.find("\ndata: ");
      REQUIRE(data != std::string::npos);
      events.push_back(Json::parse(event.substr(data + 7)));
      CHECK(event.substr(0, data) == "event: " + events.back()["type"].get<std::string>());
    }
    return events;
  }
};

inline std::string types_of(const std::vector<Json>& events) {
  std::string text;
  for (const Json& event : events) {
    const std::string type = event["type"];
    if (!text.ends_with(type)) text += (text.empty() ? "" : " ") + type;
  }
  return text;
}

inline const Json kAnthropicTools = {{{"name", "add"},
                               {"description", "Adds."},
                               {"input_schema",
                                {{"type", "object"},
                                 {"properties", {{"a", {{"type", "integer"}, {"maximum", 9}}}}},
                                 {"required", {"a"}},
                                 {"additionalProperties", false}}}}};
inline const std::string kCall = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 3}}\n</tool_call>";

inline Json message(const std::string& text, Json fields = Json::object()) {
  fields["messages"] = {{{"role", "user"}, {"content", text}}};
  if (!fields.contains("max_tokens")) fields["max_tokens"] = 200;
  return fields;
}

}  // namespace spate
