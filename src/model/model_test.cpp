// model_test.cpp
//
// Goal     What create(), memory() and verify() say before a step runs: sizes of real models, memory that is then
//          really taken, and errors that name the flag or key and what works.
// Method   Published parameter counts; the tiny golden models; the reference back-end, which pads nothing.
#include "model/model.h"

#include <set>

#include "backend/reference/reference_device.h"
#include "backend/test_device/intercepting_device.h"
#include "base/test_support.h"
#include "model/checkpoint_summary.h"
#include "model/decoder.h"
#include "model/part_factory.h"
#include "weights/raw_tensors.h"
#include "weights/safetensors.h"

#include "base/test.h"

namespace spate {
namespace {

std::filesystem::path golden(const char* name) { return repo_root() / "test" / "goldens" / "model" / name; }
ModelConfig bench_config(const char* name) {
  return load_model_config(repo_root() / "bench" / "configs" / name).value();
}
TEST_CASE("real shapes have their published parameter counts") {
  const auto num_parameters = [](const char* name) {
    return Model::memory(bench_config(name), {}, {})->num_parameters;
  };
  CHECK(num_parameters("qwen3-0.6b") == 596049920);
  CHECK(num_parameters("qwen3-1.7b") == 1720574976);
  CHECK(num_parameters("qwen3-8b") == 8190735360);
  CHECK(num_parameters("llama-3.1-8b") == 8030261248);
  CHECK(num_parameters("qwen3-30b-a3b") == 30532122624);
  CHECK(num_parameters("ernie-4.5-21b-a3b") == 21825437888);
  CHECK(num_parameters("deepseek-v2-lite") == 15706484224);
}

TEST_CASE("memory() of Qwen3-0.6B, one rank and four") {
  const ModelOptions options{.limits = {.max_model_len = 4096, .max_num_batched_tokens = 512, .max_num_logits = 64}};
  const ModelMemory one = Model::memory(bench_config("qwen3-0.6b"), {}, options).value();
  REQUIRE(one.kv_layers.size() == 28);
  CHECK(one.kv_layers[27].num_kv_heads == 8);
  CHECK(one.kv_layers[27].head_dim == 128);
  const int64_t rope_bytes = 4096 * 128 * 4;
  CHECK(one.weight_bytes == 596049920 * 2 + rope_bytes);
  const ModelMemory four = Model::memory(bench_config("qwen3-0.6b"), {.rank = 3, .size = 4}, options).value();
  CHECK(four.num_parameters == one.num_parameters);
  CHECK(four.kv_layers[27].num_kv_heads == 2);
  const int64_t norm_bytes = (28 * (2 * 1024 + 2 * 128) + 1024) * 2;  // every rank has them
  CHECK((four.weight_bytes - rope_bytes - norm_bytes) * 4 == one.weight_bytes - rope_bytes - norm_bytes);
}

TEST_CASE("create() takes what memory() says") {
  for (const char* name :
       {"qwen3_tied_sharded", "llama3_bias_tied", "llama_linear_mha", "mixtral", "qwen2_moe", "deepseek_v3"}) {
    CAPTURE(name);
    const auto device = make_reference_device({}).value();
    const ModelConfig config = load_model_config(golden(name)).value();
    for (int rank = 0; rank < 2; ++rank) {
      const ModelMemory memory = Model::memory(config, {.rank = rank, .size = 2}, {}).value();
      const auto model = Model::create(config, *device, {.rank = rank, .size = 2}, {}).value();
      CHECK(model->weight_bytes() == memory.weight_bytes);
      CHECK(model->workspace_bytes() == memory.workspace_bytes);
    }
  }
}

TEST_CASE("what cannot run is refused with what can") {
  ModelConfig config = bench_config("qwen3-0.6b");
  const auto error = [&](TensorParallel tp, const ModelOptions& options) {
    return Model::memory(config, tp, options).status();
  };
  CHECK(says(error({.rank = 0, .size = 3}, {}),
             "--tensor-parallel-size 3: 16 heads, 8 kv heads and intermediate_size 3072"));
  CHECK(says(error({.rank = 0, .size = 3}, {}), "sizes that work: 1, 2, 4, 8, 16"));
  CHECK(error({.rank = 15, .size = 16}, {}).ok());  // two ranks a kv head
  CHECK(says(error({}, {.limits = {.max_model_len = 99999}}), "--max-model-len 99999: the model has 40960 positions"));
  CHECK(says(error({}, {.limits = {.kv_block_size = 24}}), "--block-size 24: needs a multiple of 16"));
  CHECK(says(error({}, {.act_dtype = DType::kF16}), "activations of f16"));
  CHECK(says(error({}, {.act_dtype = DType::kBf16, .kv_dtype = DType::kF32}), "--kv-cache-dtype: activations of bf16"));
  config.rope.type = RopeType::kYarn;
  config.rope.factor = 4;
  CHECK(error({}, {.limits = {.max_model_len = 4 * 40960}}).ok());
  config.architecture = "GPT2LMHeadModel";
  CHECK(says(error({}, {}), "architectures is \"GPT2LMHeadModel\"; this build runs DeepseekV2ForCausalLM"));
}

TEST_CASE("ranks share out the width of every expert and of the shared one") {
  const auto error = [&](const char* name, int size) {
    return Model::memory(load_model_config(golden(name)).value(), {.rank = 0, .size = size}, {}).status();
  };
  CHECK(error("qwen2_moe", 4).ok());
  CHECK(error("mixtral", 4).ok());
  CHECK(says(error("qwen2_moe", 3),
             "4 heads, 2 kv heads and intermediate_size 96, intermediate_size of an expert 24, "
             "intermediate_size of the shared expert 56 cannot"));
  // No layer of this one is dense: intermediate_size is nobody's.
  CHECK(says(error("qwen3_moe", 3), "2 kv heads and intermediate_size of an expert 16 cannot"));
}

class WithoutExperts final : public InterceptingDevice {
 public:
  WithoutExperts() : InterceptingDevice(make_reference_device({}).value()), ops_(inner().ops()) {
    ops_.expert_mlp = nullptr;
  }
  const OpTable& ops() const override { return ops_; }
  void on_launch(Launch launch) override { launch.run(); }

 private:
  OpTable ops_;
};

TEST_CASE("a back-end without experts refuses a model that has them") {
  WithoutExperts device;
  const auto create = [&](const char* name) {
    return Model::create(load_model_config(golden(name)).value(), device, {}, {}).status();
  };
  CHECK(create("qwen3_tied_sharded").ok());
  CHECK(
      says(create("qwen3_moe"), "Qwen3MoeForCausalLM has layers of 12 experts, which the reference back-end does not"));
}

// A model whose layers differ: every other one has more heads, a window and a wider MLP.
Result<DecoderParts> make_uneven(const PartFactory& make) {
  const ModelConfig& config = make.config();
  DecoderParts model;
  ASSIGN_OR_RETURN(model.embed_tokens, make.embedding("embed"));
  ASSIGN_OR_RETURN(const auto rotary, make.rotary_embedding());
  for (const int64_t i : make.layers()) {
    const int64_t size = i % 2 == 0 ? 1 : 4;
    DecoderLayer& layer = model.layers.emplace_back();
    layer.name = fmt::format("layer{}", i);
    ASSIGN_OR_RETURN(layer.input_layernorm, make.rms_norm(layer.name + ".in"));
    ASSIGN_OR_RETURN(layer.self_attn,
                     GroupedQueryAttention::create(make.parameters(), {.name = layer.name + ".attn",
                                                                       .rotary = rotary,
                                                                       .hidden_size = config.hidden_size,
                                                                       .num_heads = 2 * size,
                                                                       .num_kv_heads = size,
                                                                       .head_dim = config.head_dim,
                                                                       .window = size == 4 ? 5 : 0}));
    ASSIGN_OR_RETURN(layer.post_attention_layernorm, make.rms_norm(layer.name + ".post"));
    ASSIGN_OR_RETURN(layer.mlp,
                     Mlp::create(make.parameters(), layer.name + ".mlp", config.hidden_size, 32 * size, false));
  }
  ASSIGN_OR_RETURN(model.norm, make.rms_norm("norm"));
  ASSIGN_OR_RETURN(model.lm_head, make.lm_head("lm_head", model.embed_tokens));
  return model;
}

TEST_CASE("layers may differ: each has its own KV layer, the workspace is that of the largest") {
  const ModelConfig config = load_model_config(golden("qwen3_tied_sharded")).value();
  const ModelFamily family{.architecture = "Uneven", .make = make_uneven};
  const auto memory = [&](Range layers) {
    return Decoder::create(family, config, nullptr, {}, {.layers = layers}).value()->memory();
  };
  const ModelMemory small = memory({0, 1}), large = memory({1, 1}), both = memory({0, 2});
  REQUIRE(both.kv_layers.size() == 2);
  CHECK(both.kv_layers[0].kind == KvKind::kFull);
  CHECK(both.kv_layers[0].num_kv_heads == 1);
  CHECK(both.kv_layers[1].kind == KvKind::kWindow);
  CHECK(both.kv_layers[1].num_kv_heads == 4);
  CHECK(small.workspace_bytes < large.workspace_bytes);
  CHECK(both.workspace_bytes == large.workspace_bytes);
}

TEST_CASE("outline() names every weight but norms and biases, and what feeds each product") {
  for (const char* name : {"qwen3_tied_sharded", "ernie4_5_bias", "llama_linear_mha"}) {
    CAPTURE(name);
    const ModelConfig config = load_model_config(golden(name)).value();
    const Checkpoint checkpoint = Checkpoint::open(golden(name)).value();
    const ModelOutline outline = Model::outline(config).value();
    CHECK(checkpoint.find(outline.embed_tokens + ".weight") != nullptr);
    CHECK(checkpoint.find(outline.norm + ".weight") != nullptr);
    CHECK((checkpoint.find(outline.lm_head + ".weight") != nullptr) == !config.tie_word_embeddings);
    REQUIRE(static_cast<int64_t>(outline.layers.size()) == config.num_layers);
    std::set<std::string> listed = {outline.embed_tokens + ".weight", outline.lm_head + ".weight"};
    for (const ModelOutline::Layer& layer : outline.layers) {
      for (const Product& product : layer.products) {
        const TensorEntry* source = checkpoint.find(product.source + ".weight");
        REQUIRE(source != nullptr);
        CHECK((source->shape.size() == 1) == product.source_is_norm);
        for (const Product::Matrix& matrix : product.matrices) {
          CHECK(matrix.name.starts_with(layer.name + "."));
          CHECK(listed.insert(matrix.name + ".weight").second);
          const TensorEntry* entry = checkpoint.find(matrix.name + ".weight");
          REQUIRE(entry != nullptr);
          if (product.source_channels.empty()) {
            CHECK(entry->shape[1] == source->shape[0]);
            continue;
          }
          REQUIRE(static_cast<int64_t>(product.source_channels.size()) == entry->shape[1]);
          for (const int64_t channel : product.source_channels) CHECK(channel < source->shape[0]);
        }
      }
    }
    for (const TensorEntry& entry : checkpoint.entries()) {
      if (entry.shape.size() == 2) CHECK_MESSAGE(listed.contains(entry.name), entry.name);
    }
  }
}

TEST_CASE("verify() compares a checkpoint with a config") {
  const Checkpoint checkpoint = Checkpoint::open(golden("qwen2_window")).value();
  ModelConfig config = load_model_config(golden("qwen2_window")).value();
  CHECK(Model::verify(config, checkpoint).ok());
  config.num_layers = 4;
  config.layer_types.push_back("full_attention");
  config.vocab_size = 161;
  const Status bigger = Model::verify(config, checkpoint);
  CHECK(says(bigger, "14 problems"));  // 12 tensors of layer 3, two of the vocabulary
  CHECK(says(bigger, "model.layers.3.self_attn.q_proj.bias [48] is missing"));
  CHECK(says(bigger, "model.embed_tokens.weight is [160, 48], config.json makes it [161, 48]"));
  config = load_model_config(golden("qwen2_window")).value();
  config.architecture = "MistralForCausalLM";
  CHECK(says(Model::verify(config, checkpoint),
             "model.layers.0.self_attn.q_proj.bias [48] in model.safetensors is not a parameter"));
}

TEST_CASE("a missing expert is named, in both layouts of experts") {
  const auto problems = [&](const char* name, int64_t num_experts) {
    ModelConfig config = load_model_config(golden(name)).value();
    const Checkpoint checkpoint = Checkpoint::open(golden(name)).value();
    CHECK(Model::verify(config, checkpoint).ok());
    config.experts.num_experts = num_experts;
    return Model::verify(config, checkpoint);
  };
  const Status more = problems("mixtral", 6);  // of 5
  CHECK(says(more, "12 problems"));            // the router and three matrices, of three layers
  CHECK(says(more, "model.layers.1.block_sparse_moe.experts.5.w1.weight [40, 48] is missing"));
  CHECK(says(more, "model.layers.1.block_sparse_moe.gate.weight is [5, 48], config.json makes it [6, 48]"));
  CHECK(says(problems("ernie4_5_moe", 7),
             "model.layers.2.mlp.experts.7.up_proj.weight [24, 48] in model.safetensors is not a parameter"));
  CHECK(says(problems("qwen3_moe_fused", 8),
             "model.layers.0.mlp.experts.gate_up_proj is [7, 40, 48], config.json makes it [8, 40, 48]"));
}

TEST_CASE("layers for multi-token prediction are left out by name") {
  ModelConfig config = load_model_config(golden("deepseek_v3")).value();
  const Checkpoint checkpoint = Checkpoint::open(golden("deepseek_v3")).value();
  CHECK(Model::verify(config, checkpoint).ok());
  config.num_layers = 2;  // of 3: the last one is behind the model
  CHECK(says(Model::verify(config, checkpoint),
             "model.layers.2.input_layernorm.weight [48] in model.safetensors is not a parameter of this model"));
  config.num_mtp_layers = 1;
  CHECK(Model::verify(config, checkpoint).ok());
}

TEST_CASE("layers for multi-token prediction are made where they are wanted, and checked like the others") {
  const ModelConfig config = load_model_config(golden("deepseek_v3_mtp")).value();
  RawTensors tensors = read_tensors(golden("deepseek_v3_mtp"));
  const auto load = [&] {
    const TempDir dir;
    write_tensors(tensors, dir.path() / "model.safetensors");
    const Checkpoint checkpoint = Checkpoint::open(dir.path()).value();
    const ModelOptions options{.source = &checkpoint, .num_mtp_layers = 1};
    return Decoder::create(*find_family(config).value(), config, nullptr, {}, options).value()->verify(checkpoint);
  };
  CHECK(load().ok());
  for (const char* name :
       {"enorm", "hnorm", "eh_proj", "shared_head.norm", "mlp.experts.7.up_proj", "self_attn.o_proj"}) {
    CAPTURE(name);
    const std::string tensor = fmt::format("model.layers.2.{}.weight", name);
    const auto kept = tensors.extract(tensor);
    CHECK(says(load(), tensor + " ["));
    CHECK(says(load(), "is missing"));
    tensors[tensor] = kept.mapped();
  }
  tensors.erase("model.layers.2.embed_tokens.weight");  // copies of the model's own
  tensors.erase("model.layers.2.shared_head.head.weight");
  CHECK(load().ok());

  const ModelMemory with = Model::memory(config, {}, {.num_mtp_layers = 1}).value(),
                    without = Model::memory(config, {}, {}).value();
  CHECK(with.kv_layers.size() == 2);
  CHECK(with.mtp_kv_layers.size() == 1);
  CHECK(without.kv_layers.size() == 2);
  CHECK(without.mtp_kv_layers.empty());
  CHECK(with.num_parameters > without.num_parameters);
  CHECK(says(Model::memory(config, {}, {.num_mtp_layers = 2}).status(),
             "2 layers for multi-token prediction are wanted; config.json has 1"));
  CHECK(says(Model::memory(load_model_config(golden("qwen3_moe")).value(), {}, {.num_mtp_layers = 1}).status(),
             "config.json has 0"));
}

TEST_CASE("a latent cache is one vector a token, on every rank") {
  const ModelConfig config = load_model_config(golden("deepseek_v2_groups")).value();
  const ModelMemory two = Model::memory(config, {.rank = 1, .size = 2}, {}).value();
  REQUIRE(two.kv_layers.size() == 3);
  CHECK(two.kv_layers[0].kind == KvKind::kLatent);
  CHECK(two.kv_layers[0].latent_width() == 40);
  CHECK(two.kv_layers[0].num_kv_heads == 0);
  CHECK(two.num_parameters == Model::memory(config, {}, {})->num_parameters);
}

TEST_CASE("a tied model ignores an lm_head that its checkpoint holds; an untied one needs it") {
  ModelConfig config = load_model_config(golden("qwen2_window")).value();
  const Checkpoint untied = Checkpoint::open(golden("qwen2_window")).value();
  config.tie_word_embeddings = true;
  CHECK(Model::verify(config, untied).ok());
  config = load_model_config(golden("qwen3_tied_sharded")).value();
  const Checkpoint tied = Checkpoint::open(golden("qwen3_tied_sharded")).value();
  CHECK(Model::verify(config, tied).ok());
  config.tie_word_embeddings = false;
  CHECK(says(Model::verify(config, tied), "1 problem:\n  lm_head.weight [160, 48] is missing"));
}

TEST_CASE("a checkpoint in a few lines") {
  const Checkpoint checkpoint = Checkpoint::open(golden("qwen2_window")).value();
  const CheckpointSummary summary = summarize_checkpoint(checkpoint);
  CHECK(summary.groups.size() == 15);
  CHECK(summary.num_tensors == 3 + 3 * 12);
  CHECK(summary.num_elements ==
        Model::memory(load_model_config(golden("qwen2_window")).value(), {}, {})->num_parameters);
  CHECK(format_checkpoint_summary(summary).find(
            "  BF16  3 x [96, 48]           model.layers.{0..2}.mlp.up_proj.weight\n") != std::string::npos);
}

}  // namespace
}  // namespace spate
