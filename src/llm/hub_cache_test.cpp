// Goal    A model is found by its hub name in a cache as `hf download` writes it; every way in which the cache can be
//         broken is said, and no name leads out of it.
#include "llm/hub_cache.h"

#include "base/test_support.h"
#include "base/test.h"

namespace spate {
namespace {

namespace fs = std::filesystem;

// models--acme--tiny with one snapshot whose config.json is a link to a blob, as the hub's client makes it.
fs::path add_model(const fs::path& cache, const std::string& hash, bool with_ref = true) {
  const fs::path folder = cache / "models--acme--tiny";
  write_file_or_die(folder / "blobs" / "abc", "{}");
  fs::create_directories(folder / "snapshots" / hash);
  fs::create_symlink("../../blobs/abc", folder / "snapshots" / hash / "config.json");
  if (with_ref) write_file_or_die(folder / "refs" / "main", hash);
  return folder;
}

std::string message_of(const std::string& name, const fs::path& cache) {
  const auto found = find_model(name, cache);
  return found.ok() ? "found " + found->path.string() : found.status().message();
}

bool says(const std::string& message, const std::string& text) {
  INFO(message);
  return message.find(text) != std::string::npos;
}

}  // namespace

TEST_CASE("hub cache: a name gives the snapshot that refs/main names") {
  const TempDir dir;
  const fs::path folder = add_model(dir.path(), "0123abcd");
  fs::create_directories(folder / "snapshots" / "ffff");
  const auto found = find_model("acme/tiny", dir.path());
  REQUIRE(found.ok());
  CHECK(found->path == folder / "snapshots" / "0123abcd");
  CHECK(found->hub_name == "acme/tiny");
}

TEST_CASE("hub cache: a path that exists is itself, whatever the cache has") {
  const TempDir dir;
  add_model(dir.path(), "0123abcd");
  const auto found = find_model(dir.path().string(), dir.path());
  REQUIRE(found.ok());
  CHECK(found->path == dir.path());
  CHECK(found->hub_name.empty());
}

TEST_CASE("hub cache: without refs/main the only snapshot is taken, of several none") {
  const TempDir dir;
  const fs::path folder = add_model(dir.path(), "0123abcd", false);
  CHECK(find_model("acme/tiny", dir.path()).ok());
  fs::create_directories(folder / "snapshots" / "ffff");
  CHECK(says(message_of("acme/tiny", dir.path()), "2 snapshots and no refs/main"));
  fs::remove_all(folder / "snapshots");
  CHECK(says(message_of("acme/tiny", dir.path()), "has no snapshot"));
}

TEST_CASE("hub cache: what is broken is said, and how to get the model") {
  const TempDir dir;
  CHECK(says(message_of("acme/tiny", dir.path()), "hf download acme/tiny"));
  CHECK(says(message_of("tiny", dir.path()), "hf download tiny"));
  const fs::path folder = add_model(dir.path(), "0123abcd");
  fs::remove(folder / "blobs" / "abc");
  CHECK(says(message_of("acme/tiny", dir.path()), "not completely downloaded: 1 of its files lack their contents, the first is config.json"));
  fs::remove(folder / "snapshots" / "0123abcd" / "config.json");
  CHECK(says(message_of("acme/tiny", dir.path()), "neither config.json nor a *.gguf file"));
  for (const char* hash : {"../../../etc", "/etc", "", "..", "a/b", "0123\nabcd/../.."}) {
    write_file_or_die(folder / "refs" / "main", hash);
    const std::string message = message_of("acme/tiny", dir.path());
    CHECK((says(message, "holds no name of a snapshot") || says(message, "which is not in")));
  }
  write_file_or_die(folder / "refs" / "main", "beef");
  CHECK(says(message_of("acme/tiny", dir.path()), "names the snapshot beef, which is not in"));
}

TEST_CASE("hub cache: a repository of GGUF files") {
  const TempDir dir;
  const fs::path snapshot = dir.path() / "models--acme--tiny-gguf" / "snapshots" / "1";
  write_file_or_die(dir.path() / "models--acme--tiny-gguf" / "refs" / "main", "1\n");
  write_file_or_die(snapshot / "tiny-q4.gguf", "");
  const auto found = find_model("acme/tiny-gguf", dir.path());
  REQUIRE(found.ok());
  CHECK(found->path == snapshot / "tiny-q4.gguf");
  write_file_or_die(snapshot / "tiny-q8.gguf", "");
  CHECK(says(message_of("acme/tiny-gguf", dir.path()), "give the path of one"));
}

TEST_CASE("hub cache: hostile names are no names") {
  const TempDir dir;
  fs::create_directories(dir.path() / "cache");
  fs::create_directories(dir.path() / "models--x");
  const std::string with_nul("a\0b", 3);
  for (const std::string& name : {std::string("../../x"), std::string("../models--x"), std::string("a/../b"), std::string("a//b"),
                                  std::string("a/b/c"), std::string("/a"), std::string("a/"), std::string("a--b"), std::string("-a/b"),
                                  std::string(".a/b"), std::string("a/.."), std::string("a\\b"), std::string("a b"), std::string(),
                                  with_nul, std::string(97, 'a'), std::string("a/b\n")}) {
    INFO(name);
    CHECK_FALSE(is_hub_name(name));
    CHECK_FALSE(find_model(name, dir.path() / "cache").ok());
  }
  CHECK(is_hub_name("Qwen/Qwen3-0.6B"));
  CHECK(is_hub_name("gpt2"));
}

}  // namespace spate
