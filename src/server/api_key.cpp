#include "server/api_key.h"

#include <fstream>

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

std::optional<Sha256> hash_of_hex(std::string_view hex) {
  Sha256 hash{};
  if (hex.size() != 2 * hash.size()) return std::nullopt;
  for (size_t i = 0; i < hex.size(); ++i) {
    const char c = hex[i];
    const int digit = c >= '0' && c <= '9'                     ? c - '0'
                      : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10
                                                               : -1;
    if (digit < 0) return std::nullopt;
    hash[i / 2] = static_cast<uint8_t>(hash[i / 2] << 4 | digit);
  }
  return hash;
}

}  // namespace

bool has_valid_api_key(const HttpRequest& request, const std::vector<std::string>& keys,
                       std::span<const Sha256> hashes) {
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
  if (hashes.empty() || given.empty()) return is_valid;
  const Sha256 hash = sha256(given);
  for (const Sha256& each : hashes) {
    unsigned difference = 0;
    for (size_t i = 0; i < hash.size(); ++i) difference |= static_cast<unsigned>(hash[i] ^ each[i]);
    is_valid |= difference == 0;
  }
  return is_valid;
}

Result<std::vector<Sha256>> read_api_key_file(const std::string& path) {
  std::ifstream in(path);
  if (!in) return not_found("--api-key-file {}: cannot be read", path);
  std::vector<Sha256> hashes;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    const size_t first = line.find_first_not_of(" \t\r");
    if (first == std::string::npos || line[first] == '#') continue;
    std::string_view text = std::string_view(line).substr(first);
    if (text.starts_with("sha256:")) text.remove_prefix(7);
    const std::optional<Sha256> hash = hash_of_hex(text.substr(0, text.find_first_of(" \t\r")));
    if (hash == sha256("")) {
      return invalid_argument(
          "--api-key-file {} line {}: is the SHA-256 of nothing, which every request without a key has", path, number);
    }
    if (!hash) {
      return invalid_argument(
          "--api-key-file {} line {}: must be the SHA-256 of a key in 64 hexadecimal digits, not the key; make it "
          "with: "
          "printf %s KEY | sha256sum",
          path, number);
    }
    hashes.push_back(*hash);
  }
  if (in.bad()) return data_loss("--api-key-file {}: cannot be read", path);
  if (hashes.empty()) return invalid_argument("--api-key-file {}: has no keys, the server would be open", path);
  return hashes;
}

}  // namespace spate
