// Goal    A key opens the API by itself or by its hash, and nothing else does; a file of hashes is read or refused by
// its line.
#include "server/api_key.h"

#include <fmt/format.h>

#include <fstream>

#include "base/test_support.h"

#include "base/test.h"

namespace spate {
namespace {

std::string hex(const Sha256& hash) {
  std::string text;
  for (const uint8_t byte : hash) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace

TEST_CASE("sha256: the vectors of the standard, and every length around a block") {
  CHECK(hex(sha256("")) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(hex(sha256("abc")) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")) ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(hex(sha256(std::string(1000000, 'a'))) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  std::string all;  // the hash of the hashes of 0 to 130 letters, from Python's hashlib
  for (size_t length = 0; length <= 130; ++length) all += hex(sha256(std::string(length, 'x')));
  CHECK(hex(sha256(all)) == "87aca1c44bc7ba8897768170211f0a02063de70801131ff86c7edb9ce32c6a50");
}

TEST_CASE("api key: by itself or by its hash") {
  const auto opens = [](const char* header, const std::string& value, const std::vector<std::string>& keys,
                        const std::vector<Sha256>& hashes) {
    HttpRequest request;
    request.headers.emplace_back(header, value);
    return has_valid_api_key(request, keys, hashes);
  };
  const std::vector<Sha256> hashes{sha256("first"), sha256("second")};
  for (const char* key : {"first", "second", "plain"}) {
    CHECK(opens("authorization", std::string("Bearer ") + key, {"plain"}, hashes));
    CHECK(opens("x-api-key", key, {"plain"}, hashes));
  }
  for (const std::string& key : {std::string("third"), std::string(), std::string("firs"), hex(hashes[0])}) {
    CHECK(!opens("authorization", "Bearer " + key, {"plain"}, hashes));
  }
  CHECK(!opens("x-api-key", "plain", {}, hashes));
  CHECK(!has_valid_api_key({}, {}, hashes));
  CHECK(!has_valid_api_key({}, {}, {{sha256("")}}));
}

TEST_CASE("api key file: hashes as sha256sum writes them; anything else is refused by its line, without a word of it") {
  const TempDir dir;
  const std::string path = (dir.path() / "keys").string();
  const auto read = [&](const std::string& text) {
    std::ofstream(path) << text;
    return read_api_key_file(path);
  };
  const std::string one = hex(sha256("one")), two = hex(sha256("two"));
  const auto found = read("# of the team\n\n" + one + "  -\r\n  sha256:" + two + " of Ann\n");
  REQUIRE(found.ok());
  CHECK(found.value() == std::vector<Sha256>{sha256("one"), sha256("two")});
  for (const std::string& wrong :
       {std::string("secret-key"), one.substr(1), one + "0", "sha256:" + std::string(64, 'g')}) {
    const auto refused = read(one + "\n" + wrong + "\n");
    REQUIRE(!refused.ok());
    CHECK(refused.status().message().find("line 2") != std::string::npos);
    CHECK(refused.status().message().find("secret") == std::string::npos);
  }
  const auto nothing = read(one + "\n" + hex(sha256("")) + "  -\n");
  REQUIRE(!nothing.ok());
  CHECK(nothing.status().message().find("line 2: is the SHA-256 of nothing") != std::string::npos);
  CHECK(!read("").ok());
  CHECK(!read("# nothing\n").ok());
  CHECK(!read_api_key_file(path + "x").ok());
}

}  // namespace spate
