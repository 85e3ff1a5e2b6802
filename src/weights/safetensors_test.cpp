// safetensors_test.cpp
//
// Goal     A good file is read in place, whatever its alignment; every kind of bad file is refused with words that
//          name the file, the tensor and what is wrong, and nothing outside of the file is touched.
// Method   Files are written byte by byte here, independently of any library. Each hostile header differs from a good
//          one in one thing. Truncation: every prefix of a good file must be refused.
#include "weights/safetensors.h"

#include <cstring>

#include "base/test_support.h"

#include "base/test.h"

namespace spate {
namespace {

std::string file_bytes(const std::string& header, const std::string& data) {
  const uint64_t size = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &size, 8);
  return bytes + header + data;
}

std::string f32_bytes(std::initializer_list<float> values) {
  return std::string(reinterpret_cast<const char*>(values.begin()), values.size() * 4);
}

// a: [2, 2] f32, b: [2] f32.
const std::string kGoodHeader =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
    R"("b":{"dtype":"F32","shape":[2],"data_offsets":[16,24]}})";
const std::string kGoodData = f32_bytes({1, 2, 3, 4, 5, 6});

std::string parse_error(const std::string& bytes) {
  const auto entries = parse_safetensors_header(bytes, bytes.size());
  return entries.ok() ? "" : entries.status().message();
}

TEST_CASE("a checkpoint of one file is read in place") {
  TempDir dir;
  for (const std::string padding : {"", " ", "   "}) {  // the data starts aligned for f32, or not
    CAPTURE(padding.size());
    write_file_or_die(dir.path() / "model.safetensors", file_bytes(kGoodHeader + padding, kGoodData));
    const auto checkpoint = Checkpoint::open(dir.path());
    REQUIRE_MESSAGE(checkpoint.ok(), checkpoint.status().to_string());
    REQUIRE(checkpoint->entries().size() == 2);
    const TensorEntry* a = checkpoint->find("a");
    REQUIRE(a != nullptr);
    CHECK(a->shape == std::vector<int64_t>{2, 2});
    HostTensor scratch;
    const Tensor row = checkpoint->rows(*a, 1, 2, scratch).value();
    CHECK(row.shape_string() == "[1, 2]");
    CHECK(row.data<float>()[0] == 3);
    CHECK(row.data<float>()[1] == 4);
    checkpoint->release(*a, 0, 2);
    const Tensor b = checkpoint->rows(*checkpoint->find("b"), 0, 2, scratch).value();
    CHECK(b.data<float>()[1] == 6);
    CHECK(checkpoint->rows(*a, 0, 2, scratch).value().data<float>()[0] == 1);  // released pages come back
    CHECK(checkpoint->find("c") == nullptr);
  }
}

TEST_CASE("every prefix of a good file is refused") {
  const std::string good = file_bytes(kGoodHeader, kGoodData);
  CHECK(parse_error(good).empty());
  for (size_t size = 0; size < good.size(); ++size) {
    CAPTURE(size);
    CHECK_FALSE(parse_error(good.substr(0, size)).empty());
  }
  CHECK(parse_error(good + "x") == "the file has " + std::to_string(good.size() + 1) +
                                       " bytes, its tensors end at byte " + std::to_string(good.size()));
}

TEST_CASE("hostile headers are refused by name") {
  const auto one = [](const std::string& tensor) { return file_bytes("{\"t\":" + tensor + "}", std::string(16, 'x')); };
  struct Case {
    std::string bytes;
    const char* says;
  };
  const Case cases[] = {
      {file_bytes("[]", ""), "not a JSON object"},
      {file_bytes("", ""), "not a JSON object"},
      {file_bytes(std::string(5000, '['), ""), "not a JSON object"},
      {file_bytes("{\"t\":{\"dtype\":\"F32\"", ""), "not a JSON object"},
      {std::string("\xff\xff\xff\xff\xff\xff\xff\xff", 8), "claims 18446744073709551615 bytes"},
      {std::string("\x00\xe1\xf5\x05\x00\x00\x00\x00", 8) + "{}", "claims 100000000 bytes"},
      {one("1"), "tensor t: no dtype"},
      {one(R"({"dtype":"F32"})"), "tensor t: no shape"},
      {one(R"({"dtype":"F33","shape":[4],"data_offsets":[0,16]})"), "tensor t: dtype F33 is not known"},
      {one(R"({"dtype":"F32","shape":[-4],"data_offsets":[0,16]})"), "no size"},
      {one(R"({"dtype":"F32","shape":[1.5],"data_offsets":[0,16]})"), "no size"},
      {one(R"({"dtype":"F32","shape":[1,1,1,1,1,1,1,1,4],"data_offsets":[0,16]})"), "more than 8 dimensions"},
      {one(R"({"dtype":"F32","shape":[4]})"), "data_offsets are not two offsets"},
      {one(R"({"dtype":"F32","shape":[4],"data_offsets":[0]})"), "data_offsets are not two offsets"},
      {one(R"({"dtype":"F32","shape":[4],"data_offsets":[0,-16]})"), "data_offsets are not two offsets"},
      {one(R"({"dtype":"F32","shape":[4],"data_offsets":[16,0]})"), "data_offsets [16, 0) are outside"},
      {one(R"({"dtype":"F32","shape":[8],"data_offsets":[0,32]})"), "outside of the 16 bytes of data"},
      {one(R"({"dtype":"F32","shape":[4],"data_offsets":[0,18446744073709551615]})"), "outside of the 16 bytes"},
      {one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,16]})"), "F32 [3] does not fill data_offsets [0, 16)"},
      {one(R"({"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,16]})"), "does not fill"},
      {one(R"({"dtype":"F32","shape":[9223372036854775807,2],"data_offsets":[0,16]})"), "does not fill"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[8,16]})"), "8 bytes before tensor t belong to no tensor"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})"), "its tensors end at byte"},
      {file_bytes(
           R"({"a":{"dtype":"U8","shape":[10],"data_offsets":[0,10]},"b":{"dtype":"U8","shape":[8],"data_offsets":[8,16]}})",
           std::string(16, 'x')),
       "tensor b overlaps"},
      {file_bytes(
           R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"a":{"dtype":"U8","shape":[8],"data_offsets":[8,16]}})",
           std::string(16, 'x')),
       "tensor a is listed twice"},
      {file_bytes("{\"\\u0000\\n\":1}", ""), "tensor ??: no dtype"},
  };
  for (const Case& one_case : cases) {
    const std::string error = parse_error(one_case.bytes);
    CAPTURE(one_case.says);
    CHECK_MESSAGE(error.find(one_case.says) != std::string::npos, error);
  }
}

TEST_CASE("empty tensors take no place") {
  const std::string header =
      R"({"a":{"dtype":"F32","shape":[0,5],"data_offsets":[0,0]},"b":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})";
  const std::string bytes = file_bytes(header, "x");
  const auto entries = parse_safetensors_header(bytes, bytes.size());
  REQUIRE_MESSAGE(entries.ok(), entries.status().to_string());
  CHECK(entries->at(0).name == "a");
}

TEST_CASE("sharded checkpoints follow their index, and its lies are found") {
  TempDir dir;
  const std::string header_a = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  const std::string header_b = R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  write_file_or_die(dir.path() / "one.safetensors", file_bytes(header_a, f32_bytes({1})));
  write_file_or_die(dir.path() / "two.safetensors", file_bytes(header_b, f32_bytes({2})));
  const auto open_with_index = [&](const std::string& weight_map) {
    write_file_or_die(dir.path() / "model.safetensors.index.json", "{\"weight_map\":" + weight_map + "}");
    return Checkpoint::open(dir.path());
  };
  const auto error = [&](const std::string& weight_map) { return open_with_index(weight_map).status().message(); };

  const auto good = open_with_index(R"({"a":"one.safetensors","b":"two.safetensors"})");
  REQUIRE_MESSAGE(good.ok(), good.status().to_string());
  HostTensor scratch;
  CHECK(good->rows(*good->find("b"), 0, 1, scratch).value().data<float>()[0] == 2);
  CHECK(good->file_name(good->find("b")->file_idx) == "two.safetensors");

  CHECK(error(R"({"a":"one.safetensors","b":"one.safetensors"})")
            .find("puts tensor b into one.safetensors, which does not have it") != std::string::npos);
  CHECK(error(R"({"a":"three.safetensors"})").find("three.safetensors: No such file") != std::string::npos);
  CHECK(error(R"({"a":"../one.safetensors"})").find("weight_map of a is not a file name") != std::string::npos);
  CHECK(error(R"({"a":1})").find("weight_map of a is not a file name") != std::string::npos);
  CHECK(error("[]").find("not a JSON object with a weight_map") != std::string::npos);

  std::filesystem::remove(dir.path() / "model.safetensors.index.json");
  CHECK(Checkpoint::open(dir.path()).ok());  // every *.safetensors
  write_file_or_die(dir.path() / "three.safetensors", file_bytes(header_a, f32_bytes({1})));
  CHECK(
      Checkpoint::open(dir.path()).status().message().find("tensor a is in one.safetensors and in three.safetensors") !=
      std::string::npos);
  write_file_or_die(dir.path() / "three.safetensors", "");
  CHECK(Checkpoint::open(dir.path()).status().message().find("three.safetensors: the file is empty") !=
        std::string::npos);
}

TEST_CASE("the tensors of a bare decoder get the prefix of a model") {
  const auto names = [](const std::vector<std::string>& stored) {
    std::string header;
    for (size_t i = 0; i < stored.size(); ++i) {
      header += (i == 0 ? "{\"" : ",\"") + stored[i] + R"(":{"dtype":"F32","shape":[1],"data_offsets":[)" +
                std::to_string(4 * i) + "," + std::to_string(4 * i + 4) + "]}";
    }
    TempDir dir;
    write_file_or_die(dir.path() / "model.safetensors", file_bytes(header + "}", std::string(4 * stored.size(), 'a')));
    const auto checkpoint = Checkpoint::open(dir.path());
    REQUIRE_MESSAGE(checkpoint.ok(), checkpoint.status().to_string());
    std::vector<std::string> read;
    for (const TensorEntry& entry : checkpoint->entries()) {
      CHECK(checkpoint->find(entry.name) == &entry);
      read.push_back(entry.name);
    }
    return read;
  };
  CHECK(names({"embed_tokens.weight", "layers.0.mlp.up_proj.qweight", "lm_head.weight", "norm.weight", "other"}) ==
        std::vector<std::string>{"model.embed_tokens.weight", "model.layers.0.mlp.up_proj.qweight", "lm_head.weight",
                                 "model.norm.weight", "other"});
  const std::vector<std::string> whole = {"model.embed_tokens.weight", "embed_tokens.weight", "norm.weight"};
  CHECK(names(whole) == whole);
  CHECK(names({"layers.0.a", "norm.weight"}) == std::vector<std::string>{"layers.0.a", "norm.weight"});  // no decoder
}

TEST_CASE("a directory without weights says what to do") {
  TempDir dir;
  CHECK(Checkpoint::open(dir.path()).status().message().find("--load-format dummy") != std::string::npos);
}

}  // namespace
}  // namespace spate
