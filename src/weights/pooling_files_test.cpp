// Goal: what sentence-transformers' files say of pooling is read as it does; what is not built is said, not guessed.
#include "weights/pooling_files.h"

#include "base/test_support.h"
#include "base/test.h"

namespace spate {
namespace {

constexpr const char* kLastToken = R"({"word_embedding_dimension": 1024, "pooling_mode_cls_token": false,
  "pooling_mode_mean_tokens": false, "pooling_mode_max_tokens": false, "pooling_mode_mean_sqrt_len_tokens": false,
  "pooling_mode_weightedmean_tokens": false, "pooling_mode_lasttoken": true, "include_prompt": true})";

std::string modules(const std::string& more) {
  return R"([{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"})" +
         more + "]";
}

std::string module(const std::string& type) {
  return R"(, {"idx": 2, "name": "2", "path": "2_X", "type": "sentence_transformers.models.)" + type + "\"}";
}

TEST_CASE("the way of pooling is one of many flags, or a name") {
  CHECK(parse_pooling_module(kLastToken)->pooling == Pooling::kLast);
  CHECK(parse_pooling_module(R"({"pooling_mode_mean_tokens": true})")->pooling == Pooling::kMean);
  CHECK(parse_pooling_module(R"({"pooling_mode_cls_token": true})")->pooling == Pooling::kCls);
  CHECK(parse_pooling_module(R"({"pooling_mode": "lasttoken"})")->pooling == Pooling::kLast);
  CHECK(parse_pooling_module(R"({"pooling_mode": "mean"})")->pooling == Pooling::kMean);

  const PoolingConfig both = *parse_pooling_module(R"({"pooling_mode_mean_tokens": true, "pooling_mode_lasttoken": true})");
  CHECK(both.pooling == Pooling::kNone);
  CHECK(both.problem ==
        "the model asks for pooling_mode_lasttoken, pooling_mode_mean_tokens; last, mean or cls alone is built");
  const PoolingConfig max = *parse_pooling_module(R"({"pooling_mode_max_tokens": true})");
  CHECK(max.pooling == Pooling::kNone);
  CHECK(max.problem == "the model asks for pooling_mode_max_tokens; last, mean or cls alone is built");
  CHECK(parse_pooling_module("{}")->problem == "the model asks for no pooling; last, mean or cls alone is built");
  CHECK(parse_pooling_module(R"({"pooling_mode_lasttoken": 3})").status().message() ==
        "pooling_mode_lasttoken is 3, needs true or false");
  CHECK_FALSE(parse_pooling_module("[").ok());
}

TEST_CASE("a model directory says how its embeddings are made") {
  const TempDir dir;
  const std::filesystem::path model = dir.path();
  CHECK(load_pooling_config(model)->pooling == Pooling::kNone);
  CHECK(load_pooling_config(model)->problem.empty());

  write_file_or_die(model / "1_Pooling" / "config.json", kLastToken);
  CHECK(load_pooling_config(model)->pooling == Pooling::kLast);
  CHECK(load_pooling_config(model)->normalize);  // as vLLM, where no file says otherwise
  CHECK(load_pooling_config(model)->source == "1_Pooling/config.json");

  write_file_or_die(model / "modules.json", modules(""));
  CHECK_FALSE(load_pooling_config(model)->normalize);
  write_file_or_die(model / "modules.json", modules(module("Normalize")));
  CHECK(load_pooling_config(model)->normalize);
  CHECK(load_pooling_config(model)->pooling == Pooling::kLast);

  write_file_or_die(model / "modules.json", modules(module("Dense")));
  CHECK(load_pooling_config(model)->pooling == Pooling::kNone);
  CHECK(load_pooling_config(model)->problem == "modules.json lists a module Dense, which is not built");

  write_file_or_die(model / "modules.json", "{}");
  CHECK(load_pooling_config(model).status().message().find("modules.json: not a JSON array") != std::string::npos);
}

TEST_CASE("a GGUF file without a pooling_type gives none") {
  const auto file = repo_root() / "test" / "goldens" / "quantized" / "gguf_llama3" / "model.gguf";
  CHECK(load_pooling_config(file)->pooling == Pooling::kNone);
}

}  // namespace
}  // namespace spate
