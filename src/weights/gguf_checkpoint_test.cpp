// gguf_checkpoint_test.cpp
//
// Goal     Blocks of codes mean what llama.cpp's `gguf` package makes of them; metadata becomes the config; a damaged
//          file, and one of a kind that is not read, is refused with the name of the tensor or key.
// Method   Random blocks with their values (tools/goldens/make_quantized_goldens.py). The small models of
//          test/goldens/quantized (their logits: model/quantized_golden_test.cpp), as they are and with bytes changed:
//          a number behind a name is found by the name. Random damage must end in a Status or in readable rows.
#include "weights/gguf_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/tensor_compare.h"
#include "base/test_support.h"
#include "weights/gguf/gguf_blocks.h"
#include "weights/gguf/gguf_path.h"
#include "weights/gguf_names.h"
#include "weights/open_weights.h"

#include "base/test.h"

namespace spate {
namespace {

std::string golden_bytes(const std::string& name) { return read_file_or_die(quantized_golden(name) / "model.gguf"); }

// Overwrites the bytes that begin `skip` bytes behind the name.
template <typename T>
void patch(std::string& file, const std::string& name, size_t skip, T value) {
  uint64_t size = name.size();
  const std::string with_size = std::string(reinterpret_cast<const char*>(&size), 8) + name;
  const size_t at = file.find(with_size);
  REQUIRE(at != std::string::npos);
  std::memcpy(file.data() + at + with_size.size() + skip, &value, sizeof value);
}
constexpr size_t kFirstDim = 4, kSecondDim = 12, kType = 20,
                 kOffset = 24;  // of a matrix: u32 num_dims, dims, type, offset
constexpr size_t kValue = 4;    // of a key: u32 type, the value

// Opens it and reads all rows.
Status read_all(const std::string& bytes) {
  ASSIGN_OR_RETURN(const std::unique_ptr<GgufCheckpoint> gguf, GgufCheckpoint::parse({bytes}));
  RETURN_IF_ERROR(gguf->model_config().status());
  RETURN_IF_ERROR(gguf->generation_config().status());
  for (const TensorEntry& entry : gguf->entries()) {
    if (entry.quantized) {
      RETURN_IF_ERROR(gguf->quantized_rows(entry, 0, entry.shape[0]).status());
    } else {
      HostTensor scratch;
      RETURN_IF_ERROR(gguf->rows(entry, 0, entry.shape[0], scratch).status());
    }
  }
  return ok_status();
}

TEST_CASE("blocks mean what the gguf package makes of them") {
  const Checkpoint goldens = Checkpoint::open(repo_root() / "test" / "goldens" / "gguf" / "blocks.safetensors").value();
  // Of the largest weight: a scale rounded to a half at codes up to 8 (31) steps, an offset likewise; Q6_K half a step
  // of 127; Q2_K 1/500 of a range that is at most twice as wide.
  const std::pair<uint32_t, double> types[] = {
      {2, 0},  {3, 0x1p-11}, {6, 0},        {7, 0},          {8, 0},  {12, 0x1p-10}, {13, 0x1p-10}, {14, 0.501 / 127},
      {20, 0}, {11, 0},      {23, 0x1p-11}, {10, 1.0 / 250}, {34, 0}, {35, 0},       {39, 0}};
  for (const auto& [type, tolerance] : types) {
    const GgufFormat& format = *find_gguf_format(type);
    CAPTURE(format.name);
    const TensorEntry* values_entry = goldens.find(std::string(format.name) + ".values");
    const TensorEntry* blocks_entry = goldens.find(std::string(format.name) + ".blocks");
    REQUIRE((values_entry != nullptr && blocks_entry != nullptr));
    HostTensor scratch;
    const Tensor expected = goldens.rows(*values_entry, 0, 4, scratch).value();
    const std::string_view blocks = goldens.bytes(*blocks_entry);
    const int64_t width = expected.dim(1);
    QuantizedHostRows rows(*format.spec, 4, width);
    const QuantizedRows& view = rows.view();
    double largest = 0;
    for (int64_t i = 0; i < 4 * width; ++i) largest = std::max(largest, std::abs(element_at(expected, i)));
    for (int64_t i = 0; i < 4; ++i) {
      decode_gguf_row(format, blocks.data() + static_cast<size_t>(i) * blocks.size() / 4, width,
                      view.codes.data<int8_t>() + i * width, view.scales.data<float>() + i * width / 32,
                      view.offsets.defined() ? view.offsets.data<float>() + i * width / 32 : nullptr);
    }
    CHECK_TENSOR(close_to("values", dequantize_rows(rows), expected, {.rel = 0, .abs = tolerance * largest}));
    // Scales and offsets are halves, as the format stores them.
    for (int64_t i = 0; i < view.scales.num_elements(); ++i) {
      CHECK(stored_scale(*format.spec, view.scales.data<float>()[i]) == view.scales.data<float>()[i]);
    }
  }
  CHECK(find_gguf_format(16)->block_bytes == 0);
  CHECK(gguf_format_name(16) == "IQ2_XXS");
  CHECK(gguf_format_name(77) == "type 77");
}

TEST_CASE("names, types and config of a GGUF file") {
  const auto gguf = GgufCheckpoint::open(quantized_golden("gguf_llama3") / "model.gguf").value();
  const TensorEntry* q = gguf->find("model.layers.0.self_attn.q_proj.weight");
  REQUIRE(q != nullptr);
  CHECK(q->dtype_name == "Q4_0");
  CHECK(*q->quantized == integer_spec(Codes::kInt4, 32, false));
  CHECK(gguf->find("rope_freqs.weight") == nullptr);
  CHECK(gguf->find("lm_head.weight")->dtype == DType::kF32);
  const ModelConfig config = gguf->model_config().value();
  CHECK(config.architecture == "LlamaForCausalLM");
  CHECK(config.vocab_size == 48);
  CHECK(config.head_dim == 16);
  CHECK(config.rope.theta == 500000.0);
  CHECK(config.rope.freq_factors.size() == 8);
  CHECK(config.rope.freq_factors[7] == 8.0f);
  CHECK_FALSE(config.tie_word_embeddings);
  CHECK(config.eos_token_ids == std::vector<int32_t>{46, 47});  // the named one, and the other text that ends
  const ModelConfig yarn = load_model_config(quantized_golden("gguf_qwen2_yarn") / "model.gguf").value();
  CHECK(yarn.rope.type == RopeType::kYarn);
  CHECK(yarn.rope.original_max_position_embeddings == 32);
  CHECK(yarn.model_type == "qwen2");
  CHECK(load_model_config(quantized_golden("gguf_qwen3_k") / "model.gguf")->tie_word_embeddings);
}

// A file of metadata and an embedding table of 8 tokens, for what the goldens do not have.
class MetadataFile {
 public:
  explicit MetadataFile(const std::string& architecture) : prefix_(architecture + ".") {
    text("general.architecture", architecture);
    for (const char* key : {"block_count", "attention.head_count"}) integer(prefix_ + key, 2);
    integer(prefix_ + "embedding_length", 32);
    integer(prefix_ + "feed_forward_length", 64);
    integer(prefix_ + "context_length", 128);
    number(prefix_ + "attention.layer_norm_rms_epsilon", 1e-5f);
  }
  MetadataFile& own_integer(const std::string& key, uint32_t value) { return integer(prefix_ + key, value); }
  MetadataFile& own_number(const std::string& key, float value) { return number(prefix_ + key, value); }
  MetadataFile& own_text(const std::string& key, const std::string& value) { return text(prefix_ + key, value); }
  MetadataFile& own_flag(const std::string& key, bool value) {
    begin(prefix_ + key, GgufType::kBool);
    append(uint8_t{value});
    return *this;
  }

  Result<ModelConfig> config() const {
    std::string bytes = "GGUF";
    const auto add = [&](auto value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof value); };
    add(uint32_t{3});
    add(uint64_t{1});
    add(num_keys_);
    bytes += keys_;
    const std::string name = "token_embd.weight";
    add(uint64_t{name.size()});
    bytes += name;
    add(uint32_t{2});
    for (const uint64_t dim : {32, 8}) add(dim);
    add(uint32_t{0});  // F32
    add(uint64_t{0});
    bytes.resize((bytes.size() + 31) / 32 * 32 + 32 * 8 * 4);
    ASSIGN_OR_RETURN(const std::unique_ptr<GgufCheckpoint> gguf, GgufCheckpoint::parse({bytes}));
    return gguf->model_config();
  }

 private:
  template <typename T>
  void append(T value) {
    keys_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void append_text(const std::string& text) {
    append(uint64_t{text.size()});
    keys_ += text;
  }
  void begin(const std::string& key, GgufType type) {
    append_text(key);
    append(static_cast<uint32_t>(type));
    ++num_keys_;
  }
  MetadataFile& integer(const std::string& key, uint32_t value) {
    begin(key, GgufType::kUint32);
    append(value);
    return *this;
  }
  MetadataFile& number(const std::string& key, float value) {
    begin(key, GgufType::kFloat32);
    append(value);
    return *this;
  }
  MetadataFile& text(const std::string& key, const std::string& value) {
    begin(key, GgufType::kString);
    append_text(value);
    return *this;
  }

  std::string prefix_, keys_;
  uint64_t num_keys_ = 0;
};

TEST_CASE("metadata that the goldens do not have") {
  const ModelConfig plain = MetadataFile("qwen3").config().value();
  CHECK(plain.architecture == "Qwen3ForCausalLM");
  CHECK(plain.head_dim == 16);  // width / heads, where a silent config.json of Qwen3 means 128
  CHECK(plain.num_kv_heads == 2);
  CHECK(MetadataFile("llama").config()->eos_token_ids.empty());  // where a silent config.json of Llama means 2
  CHECK(plain.rms_norm_eps == doctest::Approx(1e-5));
  CHECK(plain.rope.type == RopeType::kDefault);
  CHECK(plain.tie_word_embeddings);
  const ModelConfig mistral = MetadataFile("llama").own_integer("attention.sliding_window", 64).config().value();
  CHECK(mistral.architecture == "MistralForCausalLM");
  CHECK(mistral.sliding_window == 64);
  CHECK(MetadataFile("llama").own_integer("attention.sliding_window", 0).config()->architecture == "LlamaForCausalLM");
  const ModelConfig linear = MetadataFile("llama").own_number("rope.scale_linear", 4).config().value();
  CHECK(linear.rope.type == RopeType::kLinear);
  CHECK(linear.rope.factor == 4);
  const ModelConfig yarn = MetadataFile("qwen2")
                               .own_text("rope.scaling.type", "yarn")
                               .own_number("rope.scaling.factor", 4)
                               .own_integer("rope.scaling.original_context_length", 32)
                               .own_number("rope.scaling.attn_factor", 0.5f)
                               .own_number("rope.scaling.yarn_beta_fast", 16)
                               .config()
                               .value();
  CHECK(yarn.rope.beta_fast == 16);
  CHECK(yarn.rope.attention_factor == doctest::Approx(0.5 * (0.1 * std::log(4.0) + 1)));
  const auto yarn_file = [] {
    MetadataFile file("qwen2");
    file.own_text("rope.scaling.type", "yarn").own_number("rope.scaling.factor", 4);
    return file;
  };
  CHECK(yarn_file().config()->rope.attention_factor == 0);  // computed from the factor
  CHECK(yarn_file().own_number("rope.scaling.yarn_attn_factor", 1.5f).config()->rope.attention_factor == 1.5);
  CHECK(yarn_file()
            .own_number("rope.scaling.yarn_attn_factor", 1.5f)
            .own_number("rope.scaling.attn_factor", 0.5f)
            .config()
            ->rope.attention_factor == 0.75);
  CHECK(yarn_file().own_number("rope.scaling.yarn_ext_factor", 1).config().ok());
  CHECK(says(yarn_file().own_number("rope.scaling.yarn_ext_factor", 0.5f).config().status(),
             "rope.scaling.yarn_ext_factor is 0.5, needs 1"));
  CHECK(says(yarn_file().own_number("rope.scaling.yarn_log_multiplier", 0.1f).config().status(),
             "rope.scaling.yarn_log_multiplier"));
  CHECK(MetadataFile("qwen2").own_integer("rope.dimension_count", 8).config()->rotary_dim() == 8);
  CHECK(MetadataFile("llama").own_integer("rope.dimension_count", 16).config()->rotary_dim() == 16);
  CHECK(says(MetadataFile("llama").own_integer("rope.dimension_count", 8).config().status(),
             "llama.rope.dimension_count is 8, needs 16"));
  for (const uint32_t rotary_dim : {0u, 2u, 7u, 18u}) {
    CHECK(says(MetadataFile("qwen2").own_integer("rope.dimension_count", rotary_dim).config().status(),
               "qwen2.rope.dimension_count"));
  }
  CHECK(MetadataFile("qwen2").own_text("rope.scaling.type", "none").config()->rope.type == RopeType::kDefault);
  CHECK(says(MetadataFile("qwen2").own_text("rope.scaling.type", "linear").config().status(),
             "qwen2.rope.scaling.factor"));
  CHECK(says(MetadataFile("gemma3").config().status(), "general.architecture is 'gemma3'"));
}

// `num_experts` 0: says nothing of them.
MetadataFile expert_file(const std::string& architecture, uint32_t num_experts = 4) {
  MetadataFile file(architecture);
  if (num_experts > 0) file.own_integer("expert_count", num_experts);
  file.own_integer("expert_used_count", 2).own_integer("expert_shared_count", 1);
  if (architecture == "deepseek2") {
    file.own_integer("attention.kv_lora_rank", 32).own_integer("rope.dimension_count", 8);
    file.own_integer("attention.key_length", 24).own_integer("attention.value_length", 16);
  }
  return file;
}

TEST_CASE("metadata of experts") {
  const ModelConfig mixtral = expert_file("llama").config().value();
  CHECK(mixtral.architecture == "MixtralForCausalLM");
  CHECK(mixtral.experts.num_experts == 4);
  CHECK(mixtral.experts.intermediate_size == 64);
  CHECK(mixtral.experts.norm_topk_prob);
  CHECK(expert_file("llama", 0).config()->architecture == "LlamaForCausalLM");
  const ModelConfig qwen2 = expert_file("qwen2moe").config().value();
  CHECK(qwen2.experts.intermediate_size == 32);  // the oldest files: 64 of the two that a token uses
  CHECK(qwen2.experts.shared_intermediate_size == 64);
  CHECK_FALSE(qwen2.experts.norm_topk_prob);
  CHECK(expert_file("qwen3moe").config()->experts.norm_topk_prob);
  CHECK_FALSE(expert_file("qwen3moe").own_flag("expert_weights_norm", false).config()->experts.norm_topk_prob);
  const ModelConfig ernie = expert_file("ernie4_5-moe")
                                .own_integer("expert_feed_forward_length", 16)
                                .own_integer("expert_shared_feed_forward_length", 1234)
                                .own_integer("leading_dense_block_count", 1)
                                .config()
                                .value();
  CHECK(ernie.experts.shared_intermediate_size == 16);
  CHECK(ernie.experts.layers == std::vector<bool>{false, true});
  const ModelConfig v2 = expert_file("deepseek2").own_integer("expert_feed_forward_length", 16).config().value();
  CHECK(v2.architecture == "DeepseekV2ForCausalLM");
  CHECK(v2.latent.q_lora_rank == 0);
  CHECK(v2.latent.qk_nope_head_dim == 16);
  CHECK(v2.experts.routed_scaling_factor == 1);
  const ModelConfig v3 = expert_file("deepseek2")
                             .own_integer("expert_feed_forward_length", 16)
                             .own_integer("expert_gating_func", 2)
                             .own_flag("expert_weights_norm", true)
                             .own_number("expert_weights_scale", 2.5f)
                             .own_integer("expert_group_count", 2)
                             .own_integer("attention.key_length_mla", 20)
                             .own_integer("attention.value_length_mla", 12)
                             .own_text("rope.scaling.type", "yarn")
                             .own_number("rope.scaling.factor", 4)
                             .own_number("rope.scaling.yarn_log_multiplier", 0.0707f)
                             .config()
                             .value();
  CHECK(v3.architecture == "DeepseekV3ForCausalLM");
  CHECK(v3.latent.qk_nope_head_dim == 12);
  CHECK(v3.latent.v_head_dim == 12);
  CHECK(v3.experts.norm_topk_prob);
  CHECK(v3.experts.routed_scaling_factor == 2.5);
  CHECK(v3.experts.num_groups == 2);
  CHECK(v3.rope.mscale == doctest::Approx(0.707));
  CHECK(v3.rope.mscale_all_dim == doctest::Approx(0.707));
  const auto glm_file = [] {
    MetadataFile file = expert_file("glm4moe");
    file.own_integer("expert_feed_forward_length", 16).own_integer("expert_gating_func", 2);
    return file;
  };
  const ModelConfig glm = glm_file().own_integer("nextn_predict_layers", 1).config().value();
  CHECK(glm.num_layers == 1);
  CHECK(glm.num_mtp_layers == 1);
  CHECK(glm.rotary_dim() == 8);
  CHECK(glm_file().own_integer("rope.dimension_count", 16).config()->rotary_dim() == 16);
}

TEST_CASE("metadata of experts that is not served is refused with its key") {
  const auto refused = [](MetadataFile& file, const char* needed) {
    const Status status = file.config().status();
    CHECK_MESSAGE(says(status, needed), status.to_string(), "\n  should say ", needed);
  };
  for (const char* architecture : {"qwen2moe", "qwen3moe", "ernie4_5-moe", "deepseek2", "glm4moe"}) {
    MetadataFile file = expert_file(architecture, 0);
    refused(file, (std::string(architecture) + ".expert_count").c_str());
  }
  MetadataFile other_function = expert_file("deepseek2");
  refused(other_function.own_integer("expert_gating_func", 3),
          "deepseek2.expert_gating_func is 3; 1 (softmax) and 2 (sigmoid) are read");
  MetadataFile sigmoid = expert_file("qwen3moe");
  refused(sigmoid.own_integer("expert_gating_func", 2), "qwen3moe.expert_gating_func is 2, needs 1 (softmax)");
  MetadataFile softmax = expert_file("glm4moe");
  refused(softmax.own_integer("expert_gating_func", 1), "glm4moe.expert_gating_func is 1, needs 2 (sigmoid)");
  MetadataFile scaled = expert_file("qwen2moe");
  refused(scaled.own_number("expert_weights_scale", 2.5f), "qwen2moe.expert_weights_scale is 2.5, needs 1");
  MetadataFile normed_v2 = expert_file("deepseek2");
  refused(normed_v2.own_integer("expert_feed_forward_length", 16).own_flag("expert_weights_norm", true),
          "norm_topk_prob is true, needs false: DeepseekV2ForCausalLM");
  MetadataFile narrow = expert_file("deepseek2");
  refused(narrow.own_integer("attention.key_length_mla", 8),
          "deepseek2.attention.key_length_mla is 8, needs more than");
  MetadataFile many = expert_file("qwen3moe", 1);
  refused(many, "num_experts_per_tok is 2, more than num_experts = 1");
}

TEST_CASE("matrices of a stack are tensors of their own") {
  const auto gguf = GgufCheckpoint::open(quantized_golden("gguf_qwen3moe_g32") / "model.gguf").value();
  const TensorEntry* last = gguf->find("model.layers.0.mlp.experts.5.gate_proj.weight");
  REQUIRE(last != nullptr);
  CHECK(last->shape == std::vector<int64_t>{64, 64});
  CHECK(last->dtype_name == "Q4_0");
  CHECK(gguf->find("model.layers.0.mlp.experts.6.gate_proj.weight") == nullptr);
  CHECK(gguf->find("blk.0.ffn_gate_exps.weight") == nullptr);
  CHECK(gguf->find("model.layers.0.mlp.experts.0.up_proj.weight")->dtype == DType::kBf16);
  gguf->release(*last, 0, 64);
  const auto latent = GgufCheckpoint::open(quantized_golden("gguf_deepseek_v3_g32") / "model.gguf").value();
  CHECK(latent->find("model.layers.1.self_attn.k_b_proj.3.weight")->shape == std::vector<int64_t>{32, 32});
  CHECK(latent->find("model.layers.1.self_attn.v_b_proj.3.weight")->shape == std::vector<int64_t>{16, 32});
  const GgufTensorName both = hugging_face_name("blk.7.ffn_gate_up_exps.weight", "qwen3moe");
  REQUIRE(both.names.size() == 2);
  CHECK(name_of_matrix(both.names[1], 12) == "model.layers.7.mlp.experts.12.up_proj.weight");
  CHECK(hugging_face_name("blk.7.ffn_gate_exps.bias", "qwen3moe").names[0] == "blk.7.ffn_gate_exps.bias");
}

TEST_CASE("any part of interleaved rows gives the same rows") {
  const auto gguf = GgufCheckpoint::open(quantized_golden("gguf_llama3") / "model.gguf").value();
  const TensorEntry& q = *gguf->find("model.layers.0.self_attn.q_proj.weight");
  const HostTensor all = dequantize_rows(gguf->quantized_rows(q, 0, 64).value());
  for (const int64_t begin : {0, 3, 15, 47}) {
    const HostTensor part = dequantize_rows(gguf->quantized_rows(q, begin, begin + 17).value());
    CHECK_TENSOR(equal_bits("rows", part, copy_tensor(all.view().rows(begin, begin + 17))));
    gguf->release(q, begin, begin + 17);
  }
}

TEST_CASE("the parts of a split file") {
  const auto folder = quantized_golden("gguf_ernie4_5");
  for (const char* name : {"model-00001-of-00003.gguf", "model-00003-of-00003.gguf"}) {
    const auto gguf = GgufCheckpoint::open(folder / name);
    REQUIRE_MESSAGE(gguf.ok(), gguf.status().to_string());
    CHECK((*gguf)->entries().size() == 11);
    CHECK((*gguf)->file_name((*gguf)->entries().back().file_idx) == "model-00003-of-00003.gguf");
    CHECK((*gguf)->model_config().ok());
  }
  TempDir dir;
  std::filesystem::copy(folder / "model-00001-of-00003.gguf", dir.path());
  CHECK(says(open_weights(dir.path() / "model-00001-of-00003.gguf").status(), "model-00002-of-00003.gguf"));
  std::filesystem::copy(folder / "model-00001-of-00003.gguf", dir.path() / "model-00002-of-00003.gguf");
  CHECK(says(open_weights(dir.path() / "model-00001-of-00003.gguf").status(), "part 1 of 3, its name part 2 of 3"));
  std::filesystem::copy(folder / "model-00002-of-00003.gguf", dir.path() / "model.gguf");
  CHECK(says(open_weights(dir.path() / "model.gguf").status(), "part 2 of 3, its name part 1 of 1"));
  CHECK(gguf_files("a/b-00002-of-00002.gguf").front() == "a/b-00001-of-00002.gguf");
  for (const char* whole :
       {"a.gguf", "-of-.gguf", "x-00001-of-0000a.gguf", "x-00001-of-00000.gguf", "x-00001_of-00002.gguf"}) {
    CHECK(gguf_files(whole) == std::vector<std::filesystem::path>{whole});
  }
}

TEST_CASE("sampling defaults in the metadata") {
  const GenerationConfig config = load_generation_config(quantized_golden("gguf_llama3") / "model.gguf").value();
  CHECK(*config.temperature == doctest::Approx(0.6));
  CHECK(*config.top_k == 20);
  CHECK_FALSE(config.top_p);
  CHECK_FALSE(load_generation_config(quantized_golden("gguf_qwen2_yarn") / "model.gguf")->temperature);
}

TEST_CASE("what is not read is refused by name") {
  struct Case {
    const char* name;
    size_t skip;
    uint64_t value;
    const char* says;
  };
  const Case cases[] = {
      {"blk.0.ffn_gate.weight", kType, 16, "blk.0.ffn_gate.weight is IQ2_XXS; read are F32, F16, BF16, Q4_0"},
      {"blk.0.ffn_gate.weight", kType, 40, "blk.0.ffn_gate.weight is NVFP4"},
      {"blk.0.ffn_gate.weight", kType, 10, "blk.0.ffn_gate.weight: rows of 64 are no whole blocks of 256 (Q2_K)"},
      {"blk.0.ffn_gate.weight", kType, 99, "blk.0.ffn_gate.weight is type 99"},
      {"blk.0.ffn_gate.weight", kFirstDim, 33, "blk.0.ffn_gate.weight: rows of 33 are no whole blocks of 32 (Q4_0)"},
      {"blk.0.ffn_gate.weight", kFirstDim, 0, "blk.0.ffn_gate.weight is [0, 64]: no size"},
      {"blk.0.ffn_gate.weight", kSecondDim, uint64_t{1} << 63, "blk.0.ffn_gate.weight is [64, 9223372036854775808]"},
      {"blk.0.ffn_gate.weight", kSecondDim, 1 << 20, "blk.0.ffn_gate.weight: 37748736 bytes from byte"},
  };
  for (const Case& one : cases) {
    std::string bytes = golden_bytes("gguf_qwen2_yarn");
    if (one.skip == kType)
      patch(bytes, one.name, one.skip, static_cast<uint32_t>(one.value));
    else
      patch(bytes, one.name, one.skip, one.value);
    const Status status = read_all(bytes);
    CHECK_MESSAGE(says(status, one.says), status.to_string(), "\n  should say ", one.says);
  }
  // Hundreds of tensors in one format that is not read are one problem.
  std::string bytes = golden_bytes("gguf_qwen2_yarn");
  for (const char* name : {"blk.0.ffn_gate.weight", "blk.0.ffn_up.weight", "blk.0.attn_q.weight"}) {
    patch(bytes, name, kType, uint32_t{16});
  }
  const Status status = read_all(bytes);
  CHECK_MESSAGE(says(status, "1 problem:"), status.to_string());
  CHECK_MESSAGE(says(status, "and 2 more are IQ2_XXS; read are F32"), status.to_string());
}

// The bytes that a tensor of so many elements takes in a type; 0: its rows are no whole blocks of it.
uint64_t bytes_in(const GgufFormat& format, const GgufTensorInfo& info) {
  uint64_t rows = 1;
  for (size_t i = 1; i < info.dims.size(); ++i) rows *= info.dims[i];
  const auto block = static_cast<uint64_t>(format.block_size);
  return info.dims[0] % block == 0 ? rows * info.dims[0] / block * static_cast<uint64_t>(format.block_bytes) : 0;
}

TEST_CASE("a changed type or offset is refused with the tensor's name") {
  int num_types = 0, num_offsets = 0;
  for (const char* name : {"gguf_qwen2_yarn", "gguf_qwen3_k", "gguf_qwen3_low", "gguf_llama3", "gguf_qwen3moe_g32"}) {
    CAPTURE(name);
    const std::string sample = golden_bytes(name);
    const GgufFile file = GgufFile::parse(sample).value();
    for (size_t i = 0; i < file.tensors().size(); ++i) {
      const GgufTensorInfo& info = file.tensors()[i];
      CAPTURE(info.name);
      const size_t dims_bytes = 8 * (info.dims.size() - 1);  // kType and kOffset are of two dimensions
      const auto changed = [&](size_t skip, auto value) {
        std::string bytes = sample;
        patch(bytes, std::string(info.name), skip - 8 + dims_bytes, value);
        return read_all(bytes);
      };
      const uint64_t num_bytes = bytes_in(*find_gguf_format(info.ggml_type), info);
      const auto padded = [&](uint64_t bytes) { return (bytes + file.alignment() - 1) / file.alignment(); };
      for (uint32_t type = 0; type < 64; ++type) {
        const GgufFormat* format = find_gguf_format(type);
        if (format == nullptr || format->block_bytes == 0 || type == info.ggml_type) continue;
        const uint64_t other_bytes = bytes_in(*format, info);
        // F16 and BF16 take the same place, Q4_0 and IQ4_NL too: nothing but the values tells them apart.
        if (other_bytes != 0 && padded(other_bytes) == padded(num_bytes)) continue;
        const Status status = changed(kType, type);
        CHECK_MESSAGE(says(status, std::string(info.name)), format->name, ": ", status.to_string());
        ++num_types;
      }
      for (const uint64_t offset : {info.offset + file.alignment(), info.offset - file.alignment(), uint64_t{0}}) {
        if (offset == info.offset || offset > sample.size()) continue;
        const Status status = changed(kOffset, offset);
        CHECK_MESSAGE(says(status, std::string(info.name)), offset, ": ", status.to_string());
        ++num_offsets;
      }
    }
  }
  CHECK(num_types > 300);
  CHECK(num_offsets > 100);
}

TEST_CASE("bytes behind the last tensor are refused beyond its padding") {
  std::string bytes = golden_bytes("gguf_qwen2_yarn");
  CHECK(read_all(bytes).ok());
  bytes += std::string(32, 'x');
  const Status status = read_all(bytes);
  CHECK_MESSAGE(says(status, "the last tensor, ends at offset"), status.to_string());
}

TEST_CASE("metadata that does not fit is refused with its key") {
  const std::string sample = golden_bytes("gguf_qwen2_yarn");
  const auto message = [&](const char* name, size_t skip, auto value) {
    std::string bytes = sample;
    patch(bytes, name, skip, value);
    return read_all(bytes).message();
  };
  const auto has = [](const std::string& text, const char* part) {
    CHECK_MESSAGE(text.find(part) != std::string::npos, text);
  };
  has(message("general.architecture", kValue + 8, 'Q'),
      "general.architecture is 'Qwen2'; this build runs llama, qwen2");
  has(message("qwen2.block_count", 0, uint32_t{6}), "qwen2.block_count");  // its type becomes f32
  has(message("qwen2.embedding_length", kValue, uint32_t{0}), "hidden_size is 0, needs a whole number");
  has(message("qwen2.attention.head_count_kv", kValue, uint32_t{3}), "num_key_value_heads 3");
  has(message("qwen2.rope.scaling.type", kValue + 8, 'x'),
      "rope.scaling.type is 'xarn'; none, linear and yarn are read");
  has(message("qwen2.attention.value_length", kValue, uint32_t{8}), "keys of 16 and values of 8");
  has(message("qwen2.attention.layer_norm_rms_epsilon", kValue, 0x7fc00000u), "layer_norm_rms_epsilon");
  has(message("token_embd.weight", -size_t{11}, 'x'), "token_embd.weight is missing");
  std::string stack = golden_bytes("gguf_qwen3moe_g32");
  patch(stack, "blk.0.ffn_up_exps.weight", -size_t{11}, 'x');
  has(read_all(stack).message(), "blk.0.ffn_up_xxps.weight has 3 dimensions, needs 1 or 2");
  std::string llama = golden_bytes("gguf_llama3");
  patch(llama, "llama.attention.head_count", kValue, uint32_t{3});
  has(read_all(llama).message(), "blk.0.attn_q.weight: 64 rows are no 3 heads of even width");
  llama = golden_bytes("gguf_llama3");
  patch(llama, "rope_freqs.weight", 4, uint64_t{4});
  has(read_all(llama).message(), "rope_freqs.weight has 4 elements, needs 8");
}

TEST_CASE("a scale that is no number is refused with its row") {
  std::string bytes = golden_bytes("gguf_qwen2_yarn");
  const auto gguf = GgufCheckpoint::parse({bytes}).value();
  const TensorEntry& entry = *gguf->find("model.layers.0.mlp.gate_proj.weight");
  const uint16_t nan = 0x7e00;
  std::memcpy(bytes.data() + entry.offset + 3 * 36 + 18, &nan, 2);  // row 3, the second block of 18 bytes
  CHECK(says(gguf->quantized_rows(entry, 0, 64).status(),
             "model.layers.0.mlp.gate_proj.weight: the scale of row 3, columns 32 to 63 is no number"));
  std::string k_quants = golden_bytes("gguf_qwen3_k");
  const auto k = GgufCheckpoint::parse({k_quants}).value();
  for (const char* name : {"self_attn.q_proj", "self_attn.k_proj"}) {
    const TensorEntry& k_entry = *k->find(std::string("model.layers.0.") + name + ".weight");
    std::memcpy(k_quants.data() + k_entry.offset, &nan, 2);
    CHECK(says(k->quantized_rows(k_entry, 0, 1).status(), "the scale of row 0"));
  }
  const TensorEntry& q6 = *k->find("model.layers.0.self_attn.v_proj.weight");
  std::memcpy(k_quants.data() + q6.offset + 208, &nan, 2);
  CHECK(says(k->quantized_rows(q6, 0, 1).status(), "the scale of row 0"));
  std::string low_bits = golden_bytes("gguf_qwen3_low");
  const auto low = GgufCheckpoint::parse({low_bits}).value();
  for (const auto& [name, at] : {std::pair<const char*, size_t>{"self_attn.q_proj", 80},
                                 {"self_attn.k_proj", 108},
                                 {"self_attn.v_proj", 0},
                                 {"self_attn.o_proj", 0},
                                 {"mlp.gate_proj", 52},
                                 {"mlp.up_proj", 64},
                                 {"mlp.down_proj", 0}}) {
    CAPTURE(name);
    const TensorEntry& low_entry = *low->find(std::string("model.layers.0.") + name + ".weight");
    CHECK(low->quantized_rows(low_entry, 0, 1).ok());
    const uint16_t bad = low_entry.dtype_name == "MXFP4" ? 0x00ff : nan;  // an exponent of 255 is no number either
    std::memcpy(low_bits.data() + low_entry.offset + at, &bad, 2);
    CHECK(says(low->quantized_rows(low_entry, 0, 1).status(), "the scale of row 0"));
  }
}

TEST_CASE("every truncation is refused") {
  const std::string bytes = golden_bytes("gguf_qwen2_yarn");
  const Status status = read_all(bytes.substr(0, bytes.size() - 200));
  CHECK_MESSAGE(says(status, "is it complete?"), status.to_string());
  CHECK(says(status, ".weight: "));
  for (size_t size = 0; size < bytes.size() - 32; size += 97) {
    const std::string cut = bytes.substr(0, size);  // of its own size, so that ASan sees a read behind it
    CHECK_MESSAGE(!read_all(cut).ok(), "cut at " << size);
  }
}

TEST_CASE("random damage ends in a Status or in readable rows") {
  const uint64_t seed = test_seed();
  INFO("seed ", seed);
  Rng rng(seed);
  const std::string samples[] = {golden_bytes("gguf_llama3"), golden_bytes("gguf_qwen3_k"),
                                 golden_bytes("gguf_deepseek_v3_g32"), golden_bytes("gguf_qwen3_low")};
  int num_refused = 0;
  constexpr int kRounds = 800;
  for (int round = 0; round < kRounds; ++round) {
    std::string bytes = samples[round % 4];
    // Most of it in the header, which is the first 5,000 bytes.
    for (uint64_t i = 0; i <= rng.below(6); ++i) {
      bytes[rng.below(rng.below(4) > 0 ? 5000 : bytes.size())] = static_cast<char>(rng.next_u32());
    }
    num_refused += read_all(bytes).ok() ? 0 : 1;
  }
  CHECK(num_refused > kRounds / 4);
  CHECK(num_refused < kRounds);
}

}  // namespace
}  // namespace spate
