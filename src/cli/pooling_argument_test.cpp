// Goal    --pooler-config may be a name, JSON, or YAML; its errors name the key.
#include "base/test.h"
#include "base/test_support.h"
#include "cli/arguments_test_support.h"
#include "cli/pooling_argument.h"

namespace spate {

TEST_CASE("arguments: --pooler-config is a name, JSON, or YAML in the file") {
  const auto pooling_of = [](const std::string& text) { return parse_pooler_config(text); };
  CHECK_FALSE(pooling_of("")->pooling);
  CHECK(*pooling_of("mean")->pooling == Pooling::kMean);
  const auto args = parse({"serve", "m", "--override-pooler-config", R"({"pooling_type": "LAST", "normalize": false})"});
  REQUIRE_MESSAGE(args.ok(), args.status().message());
  CHECK(*pooling_of(args->model.pooler_config)->pooling == Pooling::kLast);
  CHECK(*pooling_of(args->model.pooler_config)->normalize == false);
  CHECK(*pooling_of("seq_pooling_type: CLS\nuse_activation: true")->normalize == true);
  const auto message = [&](const std::string& text) { return std::string(pooling_of(text).status().message()); };
  CHECK(message("max") == "--pooler-config: pooling_type must be last, mean or cls, got 'max'");
  CHECK(message(R"({"pooling_type": "none"})") == "--pooler-config: pooling_type must be last, mean or cls, got 'none'");
  CHECK(message("last\n---\nmean") == "--pooler-config must be one YAML document; a second begins in line 3");
  CHECK(message(R"({"normalize": 3})") == "--pooler-config: normalize must be true or false, got '3'");
  CHECK(message(R"({"softmax": true})").find("unknown field 'softmax'") != std::string::npos);
  CHECK(message("[1]").find("must be last, mean, cls or an object") != std::string::npos);
}

}  // namespace spate
