#include "server/api_key.h"

namespace spate {
namespace {

bool equal_in_constant_time(std::string_view given, std::string_view key) {
  unsigned difference = given.size() == key.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned>(static_cast<unsigned char>(given[i]) ^
                                        static_cast<unsigned char>(key.empty() ? 0 : key[i % key.size()]));
  }
  return difference == 0;
}

}  // namespace

bool has_valid_api_key(const HttpRequest& request, const std::vector<std::string>& keys) {
  constexpr std::string_view kBearer = "bearer ";
  std::string_view given = request.header("x-api-key");
  const std::string_view authorization = request.header("authorization");
  if (authorization.size() > kBearer.size()) {
    bool is_bearer = true;
    for (size_t i = 0; i < kBearer.size(); ++i) is_bearer &= (authorization[i] | 0x20) == (kBearer[i] | 0x20);
    if (is_bearer) given = authorization.substr(kBearer.size());
  }
  bool is_valid = false;
  for (const std::string& key : keys) is_valid |= !key.empty() && equal_in_constant_time(given, key);
  return is_valid;
}

}  // namespace spate
