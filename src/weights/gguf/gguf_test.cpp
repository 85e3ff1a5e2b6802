// gguf_test.cpp
//
// Goal     The reader gives back what a writer put in, and refuses every damaged file with a Status.
// Method   A writer of 40 lines makes the file in memory. Damage is done in three ways: cut off at every byte,
//          counts and sizes set to huge numbers, random bytes changed (seed printed); the last two only have to
//          end without a crash, which the sanitizer builds watch.

#include "weights/gguf/gguf.h"

#include <cstring>
#include <string>

#include "base/rng.h"
#include "base/test_support.h"

#include "base/test.h"

namespace spate {
namespace {

class Writer {
 public:
  template <typename T>
  Writer& number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Writer& string(std::string_view text) {
    number<uint64_t>(text.size());
    bytes_ += text;
    return *this;
  }
  Writer& key(std::string_view name, GgufType type) { return string(name).number(static_cast<uint32_t>(type)); }
  Writer& array(std::string_view name, GgufType element_type, uint64_t count) {
    return key(name, GgufType::kArray).number(static_cast<uint32_t>(element_type)).number(count);
  }
  void raw(std::string_view text) { bytes_ += text; }
  std::string bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

std::string sample_file() {
  Writer writer;
  writer.raw("GGUF");
  writer.number<uint32_t>(3).number<uint64_t>(1).number<uint64_t>(8);
  writer.key("general.architecture", GgufType::kString).string("llama");
  writer.key("general.alignment", GgufType::kUint32).number<uint32_t>(64);
  writer.key("a.negative", GgufType::kInt16).number<int16_t>(-3);
  writer.key("a.flag", GgufType::kBool).number<uint8_t>(1);
  writer.key("a.float", GgufType::kFloat32).number(0.5f);
  writer.array("tokens", GgufType::kString, 3).string("a").string("").string("bc");
  writer.array("scores", GgufType::kFloat32, 2).number(1.0f).number(-2.5f);
  writer.array("types", GgufType::kInt8, 3).number<int8_t>(1).number<int8_t>(-1).number<int8_t>(7);
  writer.string("weight").number<uint32_t>(2).number<uint64_t>(4).number<uint64_t>(2);
  writer.number<uint32_t>(0).number<uint64_t>(0);
  std::string bytes = writer.bytes();
  bytes.resize((bytes.size() + 63) / 64 * 64 + 32);
  return bytes;
}

TEST_CASE("gguf: values and tensors come back") {
  const std::string bytes = sample_file();
  const Result<GgufFile> file = GgufFile::parse(bytes);
  REQUIRE_MESSAGE(file.ok(), file.status().to_string());
  CHECK(file->version() == 3);
  CHECK(file->num_keys() == 8);
  CHECK(*file->get_string("general.architecture") == "llama");
  CHECK(*file->get_int("a.negative") == -3);
  CHECK(*file->get_bool("a.flag"));
  CHECK(std::get<double>(*file->find("a.float")) == 0.5);
  CHECK(*file->get_strings("tokens") == std::vector<std::string_view>{"a", "", "bc"});
  CHECK(*file->get_floats("scores") == std::vector<float>{1.0f, -2.5f});
  CHECK(*file->get_ints("types") == std::vector<int64_t>{1, -1, 7});
  REQUIRE(file->tensors().size() == 1);
  CHECK(file->tensors()[0].name == "weight");
  CHECK(file->tensors()[0].dims == std::vector<uint64_t>{4, 2});
  CHECK(file->alignment() == 64);
  CHECK(file->data_start() == bytes.size() - 32);
}

TEST_CASE("gguf: a missing key or another type is named") {
  const std::string bytes = sample_file();
  const Result<GgufFile> file = GgufFile::parse(bytes);
  REQUIRE(file.ok());
  CHECK(file->find("nothing") == nullptr);
  CHECK(file->get_string("nothing").status().message().find("'nothing'") != std::string::npos);
  CHECK(!file->get_int("general.architecture").ok());
  CHECK(!file->get_floats("types").ok());
  CHECK(!file->get_ints("scores").ok());
  CHECK(!file->get_strings("scores").ok());
}

TEST_CASE("gguf: every truncation of the header is refused") {
  const std::string bytes = sample_file();
  const uint64_t data_start = GgufFile::parse(bytes)->data_start();
  for (size_t size = 0; size + 64 < data_start; ++size) {
    const std::string cut = bytes.substr(0, size);  // of its own size, so that ASan sees a read behind it
    CHECK_MESSAGE(!GgufFile::parse(cut).ok(), "cut at " << size);
  }
}

TEST_CASE("gguf: huge counts are refused before anything is allocated") {
  for (const uint64_t huge : {uint64_t{1} << 40, UINT64_MAX, UINT64_MAX / 8 + 1}) {
    Writer strings;
    strings.raw("GGUF");
    strings.number<uint32_t>(3).number<uint64_t>(0).number<uint64_t>(1);
    strings.array("tokens", GgufType::kString, huge).string("a");
    CHECK(GgufFile::parse(strings.bytes()).status().code() == StatusCode::kDataLoss);
    Writer key;
    key.raw("GGUF");
    key.number<uint32_t>(3).number<uint64_t>(0).number<uint64_t>(1).number<uint64_t>(huge);
    CHECK(GgufFile::parse(key.bytes()).status().code() == StatusCode::kDataLoss);
    Writer keys;
    keys.raw("GGUF");
    keys.number<uint32_t>(3).number<uint64_t>(huge).number<uint64_t>(huge);
    CHECK(GgufFile::parse(keys.bytes()).status().code() == StatusCode::kDataLoss);
  }
  CHECK(GgufFile::parse("GGUF\x09").status().code() == StatusCode::kDataLoss);
  CHECK(GgufFile::parse("not a gguf file").status().message().find("GGUF") != std::string::npos);
}

TEST_CASE("gguf: random damage ends in a value or a Status") {
  const uint64_t seed = test_seed();
  INFO("seed ", seed);
  Rng rng(seed);
  const std::string sample = sample_file();
  int num_refused = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = sample;
    for (uint64_t i = 0; i <= rng.below(4); ++i) bytes[rng.below(bytes.size())] = static_cast<char>(rng.next_u32());
    num_refused += !GgufFile::parse(bytes).ok();
  }
  CHECK(num_refused > 1000);
}

TEST_CASE("gguf: open says what is wrong with a file") {
  CHECK(GgufFile::open("/nonexistent/x.gguf").status().code() == StatusCode::kNotFound);
}

}  // namespace
}  // namespace spate
