// loaded_model_test.cpp
//
// Goal     A GGUF file stands where a model folder does: one path gives weights, config, tokenizer, template and the
//          tokens that end an answer.
// Method   The small files of test/goldens/quantized on the reference back-end; what they compute is proved in
//          src/model.
#include "llm/loaded_model.h"

#include <algorithm>
#include <fstream>
#include <functional>

#include "base/test_support.h"

#include "base/test.h"

namespace spate {
namespace {

LlmConfig reference_model(const std::string& golden) {
  LlmConfig llm;
  llm.model = (repo_root() / "test" / "goldens" / "quantized" / golden).string();
  llm.device = oracle_back_end().name;
  llm.max_num_seqs = 2;
  llm.kv_cache_bytes = 1 << 20;
  return llm;
}

TEST_CASE("--chat-template: an empty file, one that cannot be read and one without an end are refused") {
  const TempDir dir;
  const auto message_of = [](const std::string& path) { return std::string(read_chat_template(path).status().message()); };
  std::ofstream(dir.path() / "good") << "{{ x }}";
  std::ofstream(dir.path() / "empty").close();
  CHECK(read_chat_template((dir.path() / "good").string()).value() == "{{ x }}");
  CHECK(message_of((dir.path() / "empty").string()).ends_with("is empty"));
  CHECK(message_of(dir.path().string()).find("no file that can be read") != std::string::npos);
  CHECK(message_of("/dev/zero").ends_with("has more than 4194304 bytes"));
}

TEST_CASE("a GGUF file is a whole model") {
  const auto loaded = load_model(reference_model("gguf_llama3/model.gguf"));
  REQUIRE_MESSAGE(loaded.ok(), loaded.status().to_string());
  const LoadedModel& model = **loaded;
  CHECK(model.name == "model");
  CHECK(model.config.architecture == "LlamaForCausalLM");
  CHECK(model.eos_token_ids == std::vector<int32_t>{46, 47});
  CHECK(*model.generation.top_k == 20);
  REQUIRE(model.tokenizer != nullptr);
  CHECK(model.tokenizer->decode(model.tokenizer->encode("ab c")) == "ab c");
  REQUIRE(model.chat_template != nullptr);
  CHECK(model.chat_template_source.find("assistant:") != std::string::npos);
  const bool names_formats = std::any_of(model.summary.begin(), model.summary.end(), [](const std::string& line) {
    return line.find("int4-g32-asym, int4-g32-f16scales, int8-g32, int8-g32-asym") != std::string::npos;
  });
  CHECK(names_formats);
}

bool has_line(const LoadedModel& model, std::string_view text) {
  return std::any_of(model.summary.begin(), model.summary.end(),
                     [&](const std::string& line) { return line.find(text) != std::string::npos; });
}

TEST_CASE("a line says what is made of a checkpoint of codes; --activation-dtype model keeps the activations") {
  LlmConfig llm = reference_model("gguf_llama3/model.gguf");
  const auto loaded = load_model(llm);
  REQUIRE_MESSAGE(loaded.ok(), loaded.status().to_string());
  CHECK(has_line(**loaded, "gguf checkpoint: weights of int4-g32-asym stay so; activations become int8 with a scale for "
                           "each 32 of a token"));
  CHECK(has_line(**loaded, "--activation-dtype model keeps"));
  llm.quantization = parse_quantization("gguf", ActivationDType::kModel).value();
  const auto kept = load_model(llm);
  REQUIRE_MESSAGE(kept.ok(), kept.status().to_string());
  CHECK(has_line(**kept, "weights of int4-g32-asym stay so; activations stay as they are"));
  CHECK(has_line(**kept, "int4-g32-asym-a16"));
}

TEST_CASE("--quantization with a layout that the checkpoint does not have is refused") {
  LlmConfig floats = reference_model("gguf_llama3/model.gguf");
  floats.model = (repo_root() / "models" / "mini-qwen3").string();
  floats.quantization = parse_quantization("awq").value();
  CHECK(load_model(floats).status().message().find("--quantization awq: the weights of this checkpoint are floats") !=
        std::string::npos);
  LlmConfig other = reference_model("gguf_llama3/model.gguf");
  other.quantization = parse_quantization("gptq").value();
  CHECK(load_model(other).status().message().find("this checkpoint is gguf") != std::string::npos);
}

TEST_CASE("the parts of a split GGUF file, named by any of them") {
  const auto loaded = load_model(reference_model("gguf_ernie4_5/model-00002-of-00003.gguf"));
  REQUIRE_MESSAGE(loaded.ok(), loaded.status().to_string());
  CHECK((*loaded)->config.architecture == "Ernie4_5ForCausalLM");
  CHECK((*loaded)->tokenizer != nullptr);
}

TEST_CASE("a folder of codes with the tokenizer of a GGUF file") {
  LlmConfig llm = reference_model("compressed_w8a8");
  llm.tokenizer = reference_model("gguf_llama3/model.gguf").model;
  const auto loaded = load_model(llm);
  REQUIRE_MESSAGE(loaded.ok(), loaded.status().to_string());
  CHECK((*loaded)->tokenizer->vocab_size() == 48);
  llm.tokenizer.clear();
  CHECK(load_model(llm).status().message().find("tokenizer.json") != std::string::npos);
}

TEST_CASE("a tokenizer larger than the model's vocabulary is warned of") {
  TempDir dir;
  LlmConfig llm = reference_model("gguf_llama3/model.gguf");
  llm.tokenizer = llm.model;  // of 48 tokens
  llm.model = dir.path().string();
  llm.dummy_weights = true;
  const auto warnings = [&](int vocab_size) {
    std::ofstream(dir.path() / "config.json")
        << R"({"model_type":"llama","hidden_size":32,"intermediate_size":64,"num_hidden_layers":1,)"
        << R"("num_attention_heads":2,"max_position_embeddings":64,"vocab_size":)" << vocab_size << "}";
    const auto loaded = load_model(llm);
    REQUIRE_MESSAGE(loaded.ok(), loaded.status().to_string());
    return (*loaded)->warnings;
  };
  CHECK(warnings(48).empty());
  REQUIRE(warnings(40).size() == 1);
  CHECK(warnings(40)[0].find("ids up to 47, but vocab_size is 40") != std::string::npos);
}

TEST_CASE("dummy weights take the format of quantization_config, unless a flag names another") {
  TempDir dir;
  LlmConfig llm = reference_model("gguf_llama3/model.gguf");
  llm.tokenizer = llm.model;
  llm.model = dir.path().string();
  llm.dummy_weights = true;
  llm.device = host_back_end().name;
  llm.device_options.num_threads = 1;
  const auto weight_bytes = [&](const std::string& quantization_config) {
    std::ofstream(dir.path() / "config.json")
        << R"({"model_type":"llama","hidden_size":128,"intermediate_size":256,"num_hidden_layers":2,)"
        << R"("num_attention_heads":2,"max_position_embeddings":64,"vocab_size":48)" << quantization_config << "}";
    const auto loaded = load_model(llm);
    REQUIRE_MESSAGE(loaded.ok(), loaded.status().to_string());
    return (*loaded)->weight_bytes;
  };
  constexpr int64_t kElements = 2 * (4 * 128 * 128 + 3 * 128 * 256);  // of the layers' matrices
  const int64_t floats = weight_bytes("");
  const std::string gptq = R"(,"quantization_config":{"quant_method":"gptq","bits":4,"group_size":64,"sym":true})";
  const int64_t codes = weight_bytes(gptq);
  CHECK(floats - codes == kElements * 2 - kElements / 2 - kElements / 64 * 2);  // codes, f16 scales
  const std::string fp8 = R"(,"quantization_config":{"quant_method":"fp8","weight_block_size":[128,128]})";
  CHECK(weight_bytes(fp8) == floats);
  llm.quantization = parse_quantization("int8").value();
  CHECK(weight_bytes(gptq) > codes);
}

TEST_CASE("sizes of steps that do not go together are refused before weights are read") {
  const auto refused_for = [](const std::function<void(LlmConfig&)>& change) {
    LlmConfig llm = reference_model("gguf_llama3/model.gguf");
    change(llm);
    bool reads_weights = false;
    const auto loaded = load_model(llm, [&](double) { reads_weights = true; });
    CHECK(!loaded.ok());
    CHECK(!reads_weights);
    return loaded.status().to_string();
  };
  CHECK(refused_for([](LlmConfig& llm) { llm.max_num_batched_tokens = 1; }).find("--max-num-seqs 2") !=
        std::string::npos);
  CHECK(refused_for([](LlmConfig& llm) { llm.max_model_len = 1; }).find("at least 2, got 1") != std::string::npos);
  CHECK(refused_for([](LlmConfig& llm) {
          llm.max_num_batched_tokens = 16;
          llm.max_model_len = 32;
          llm.enable_chunked_prefill = false;
        }).find("without chunked prefill") != std::string::npos);
}

TEST_CASE("one sequence at a time has the whole context of the model") {
  // Blocks of the bundled model take 7.5 KiB a token on the CPU, a quarter of it padding.
  LlmConfig llm;
  llm.model = (repo_root() / "models" / "mini-qwen3").string();
  llm.device = host_back_end().name;
  llm.device_options.num_threads = 1;
  llm.dummy_weights = true;
  llm.max_num_seqs = 1;
  const auto loaded = load_model(llm);
  REQUIRE_MESSAGE(loaded.ok(), loaded.status().to_string());
  CHECK((*loaded)->ranks->memory_plan().max_model_len == 4096);
  CHECK_FALSE((*loaded)->ranks->memory_plan().max_model_len_reduced);
}

TEST_CASE("a model that is not there, and a file that is no GGUF") {
  CHECK(load_model(reference_model("nothing.gguf")).status().message().find("or a *.gguf file") != std::string::npos);
  LlmConfig llm = reference_model("");
  TempDir dir;
  const auto path = dir.path() / "model.gguf";
  std::filesystem::copy(repo_root() / "test" / "goldens" / "quantized" / "gptq_int4_g32" / "config.json", path);
  llm.model = path.string();
  CHECK(load_model(llm).status().message().find("model.gguf: gguf: the file does not begin with GGUF") !=
        std::string::npos);
}

}  // namespace
}  // namespace spate
