// quantize_model_test.cpp
//
// Goal     One layer run alone gives what it gives inside its model; AWQ's folding changes nothing before rounding; a
//          quantised directory loads, holds what the report says, and computes nearly what its source does; an
//          interrupted run leaves nothing.
// Method   The tiny golden models (windows, biases, shared kv heads, interleaved RoPE) on the reference back-end, where
//          many are made on the CPU's; inputs with a few large channels, where AWQ has something to do.
#include "quantizer/quantize_model.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <system_error>
#include <tuple>

#include "backend/cpu/cpu_device.h"
#include "backend/reference/reference_device.h"
#include "base/tensor_compare.h"
#include "base/test_support.h"
#include "model/model.h"
#include "quant/quantize.h"
#include "quantizer/awq.h"
#include "quantizer/layer_runner.h"
#include "quantizer/parallel_rows.h"
#include "weights/open_weights.h"
#include "weights/safetensors.h"

#include "base/test.h"

namespace spate {
namespace {

namespace fs = std::filesystem;

fs::path golden(const char* name) { return repo_root() / "test" / "goldens" / "model" / name; }

HostTensor read(const Checkpoint& file, const std::string& name) {
  HostTensor scratch;
  const TensorEntry* entry = file.find(name);
  REQUIRE(entry != nullptr);
  return copy_tensor(file.rows(*entry, 0, entry->shape[0], scratch).value());
}

// The model of a golden without its goldens.safetensors, so that it is a checkpoint of its own.
class ModelCopy {
 public:
  explicit ModelCopy(const char* name) {
    for (const auto& file : fs::directory_iterator(golden(name))) {
      if (file.path().filename() != "goldens.safetensors") fs::copy(file.path(), dir_.path());
    }
  }
  const fs::path& path() const { return dir_.path(); }

 private:
  TempDir dir_;
};

TEST_CASE("rows shared out where the system lends no more threads are an error for the caller, not the end of the process") {
  const NoMoreThreads limit;
  CHECK_THROWS_AS(parallel_rows(10, 4, [](int64_t, int64_t) {}), std::system_error);
  int64_t num_rows = 0;
  parallel_rows(10, 1, [&](int64_t begin, int64_t end) { num_rows += end - begin; });
  CHECK(num_rows == 10);
}

TEST_CASE("layers run one by one give the hidden states of transformers") {
  // The goldens hold the states behind the embedding, layer 0, a middle layer and the last.
  for (const char* name :
       {"qwen3_tied_sharded", "qwen2_window", "mistral_window", "ernie4_5_bias", "llama3_bias_tied"}) {
    CAPTURE(name);
    const auto device = make_reference_device({}).value();
    const ModelConfig config = load_model_config(golden(name)).value();
    const ModelOutline outline = Model::outline(config).value();
    const Checkpoint weights = Checkpoint::open(golden(name)).value(),
                     goldens = Checkpoint::open(golden(name) / "goldens.safetensors").value();
    const int64_t mid_layer = static_cast<int64_t>(element_at(read(goldens, "mid_layer"), 0));
    // Two sequences in a batch.
    HiddenBatch batch;
    int64_t num_tokens = 0;
    std::vector<HostTensor> embedded;
    for (const char* seq : {"seq0", "seq1"}) {
      embedded.push_back(read(goldens, std::string(seq) + ".hidden.embed"));
      batch.seq_lens.push_back(embedded.back().view().dim(0));
      num_tokens += batch.seq_lens.back();
    }
    batch.hidden_states = HostTensor(DType::kF32, {num_tokens, config.hidden_size});
    std::copy_n(embedded[0].view().data<float>(), embedded[0].view().num_elements(),
                batch.hidden_states.view().data<float>());
    std::copy_n(embedded[1].view().data<float>(), embedded[1].view().num_elements(),
                batch.hidden_states.view().data<float>() + embedded[0].view().num_elements());
    for (int64_t i = 0; i < config.num_layers; ++i) {
      const LayerSource source(weights, outline, i, config.hidden_size);
      const auto runner =
          LayerRunner::create(*device, config, source, num_tokens, config.max_position_embeddings).value();
      batch.hidden_states = runner->run(batch);
      const char* place = i == 0 ? "first" : i == mid_layer ? "mid" : i + 1 == config.num_layers ? "last" : nullptr;
      if (place == nullptr) continue;
      CAPTURE(place);
      const int64_t first_len = batch.seq_lens[0];
      CHECK(relative_l2(batch.hidden_states.view().rows(0, first_len),
                        read(goldens, std::string("seq0.hidden.") + place)) < 1e-5);
      CHECK(relative_l2(batch.hidden_states.view().rows(first_len, num_tokens),
                        read(goldens, std::string("seq1.hidden.") + place)) < 1e-5);
    }
  }
}

// A layer, random inputs with some channels 20 times as large, and what the layer's matrices are given for them.
struct LayerFixture {
  explicit LayerFixture(const char* name)
      : config(load_model_config(golden(name)).value()),
        outline(Model::outline(config).value()),
        weights(Checkpoint::open(golden(name)).value()),
        source(weights, outline, 0, config.hidden_size) {
    Rng rng(test_seed());
    batch.seq_lens = {40, 24};
    batch.hidden_states = random_tensor(rng, DType::kF32, {64, config.hidden_size});
    for (int64_t i = 0; i < 64; ++i) {
      for (int64_t j = 0; j < config.hidden_size; j += 7)
        batch.hidden_states.view().data<float>()[i * config.hidden_size + j] *= 20;
    }
    for (const TensorEntry& entry : source.entries()) {
      if (entry.name.starts_with("model.layers.0.")) layer[entry.name] = source.read(entry.name).value();
    }
    for (size_t i = 0; i < products().size(); ++i) statistics.emplace_back(64, 1024, false);
  }
  HostTensor run(const LayerRunner::Tap& tap = {}) {
    return LayerRunner::create(*device, config, source, 64, 64).value()->run(batch, tap);
  }
  void observe() {
    run([&](size_t product_idx, const Tensor& x) { CHECK(statistics[product_idx].add(x, math).ok()); });
  }
  const std::vector<Product>& products() const { return outline.layers[0].products; }
  // The input of a matrix of the layer.
  InputStatistics& input_of(const std::string& name) {
    for (size_t i = 0; i < products().size(); ++i) {
      for (const Product::Matrix& matrix : products()[i].matrices) {
        if (matrix.name == name) return statistics[i];
      }
    }
    FAIL("no product of " << name);
    return statistics[0];
  }

  std::unique_ptr<Device> device = make_reference_device({}).value();
  DeviceMath math{*device};
  ModelConfig config;
  ModelOutline outline;
  Checkpoint weights;
  LayerSource source;
  HiddenBatch batch;
  LayerTensors layer;
  std::vector<InputStatistics> statistics;
};

TEST_CASE("the layer that AWQ folded computes the same before rounding") {
  const CodeFormat format{.spec = integer_spec(Codes::kInt4, 32, false, true)};
  for (const char* name : {"qwen3_tied_sharded", "llama_linear_mha", "llama_plain", "ernie4_5_tied"}) {
    for (const DType norm_dtype : {DType::kF32, DType::kBf16}) {
      CAPTURE(name);
      LayerFixture fixture(name);
      const HostTensor before = fixture.run();
      fixture.observe();
      const HostTensor samples = fixture.statistics[0].samples();
      REQUIRE(fold_awq_scales(format, fixture.products(), norm_dtype, fixture.layer, fixture.statistics, fixture.math)
                  .ok());
      CHECK(relative_l2(fixture.statistics[0].samples(), samples) > 0.01);  // it did something
      const HostTensor expected_down = fixture.statistics[3].samples();
      for (auto& [tensor_name, values] : fixture.layer) fixture.source.replace(tensor_name, std::move(values));
      HostTensor down;
      const HostTensor after = fixture.run([&](size_t product_idx, const Tensor& x) {
        if (product_idx == 3) down = copy_tensor(x);
      });
      CHECK(relative_l2(after, before) < 1e-5);
      CHECK(relative_l2(down, expected_down) < 1e-5);  // and the statistics followed
    }
  }
}

TEST_CASE("folding and clipping lose less than rounding where inputs differ in size") {
  const CodeFormat format{.spec = integer_spec(Codes::kInt4, 32, false, true)};
  LayerFixture fixture("qwen3_tied_sharded");
  fixture.observe();
  const auto loss = [&](const std::string& name, bool clipped) {
    const HostTensor samples = fixture.input_of("model.layers.0." + name).samples();
    const Tensor& w = fixture.layer.at("model.layers.0." + name + ".weight");
    HostTensor error = decode(clipped ? round_clipped(format, w, samples, 2) : round_to_nearest(format, w));
    for (size_t i = 0; i < error.span<float>().size(); ++i) error.span<float>()[i] -= w.data<float>()[i];
    return fixture.math.squared_output(samples, error).value();
  };
  const double gate = loss("mlp.gate_proj", false);
  CHECK(loss("mlp.gate_proj", true) < gate);
  const double q = loss("self_attn.q_proj", false);
  REQUIRE(
      fold_awq_scales(format, fixture.products(), DType::kBf16, fixture.layer, fixture.statistics, fixture.math).ok());
  CHECK(loss("self_attn.q_proj", false) < 0.8 * q);
}

std::vector<std::vector<int32_t>> some_tokens(const ModelConfig& config, int count) {
  Rng rng(test_seed());
  std::vector<std::vector<int32_t>> sequences(static_cast<size_t>(count));
  for (auto& sequence : sequences) {
    for (int i = 0; i < 30; ++i)
      sequence.push_back(static_cast<int32_t>(rng.below(static_cast<uint64_t>(config.vocab_size))));
  }
  return sequences;
}

TEST_CASE("every method writes a directory with all tensors and a report") {
  const auto device = make_cpu_device({.num_threads = 2}).value();
  const ModelCopy model("qwen3_tied_sharded");
  const ModelConfig config = load_model_config(model.path()).value();
  const TempDir dir;
  for (const QuantizeMethod method : {QuantizeMethod::kRtn, QuantizeMethod::kAwq, QuantizeMethod::kGptq}) {
    for (const bool vocabulary : {false, true}) {
      const fs::path out = dir.path() / fmt::format("{}-{}", static_cast<int>(method), vocabulary);
      QuantizeOptions options{.spec = integer_spec(Codes::kInt4, 32, vocabulary, !vocabulary),
                              .method = method,
                              .quantize_vocabulary = vocabulary,
                              .num_threads = 2,
                              .calibration = some_tokens(config, 6)};
      double last = 0;
      bool rising = true;
      const auto report = quantize_model(model.path(), out, *device, options, [&](double share) {
        rising &= share >= last;
        last = share;
      });
      REQUIRE_MESSAGE(report.ok(), report.status().message());
      CHECK(last == 1.0);
      CHECK(rising);
      CHECK(report->num_calibration_tokens == 180);
      CHECK(report->matrices.size() == static_cast<size_t>(7 * config.num_layers + (vocabulary ? 1 : 0)));
      CHECK(report->bytes_after < report->bytes_before);
      for (const MatrixReport& matrix : report->matrices) {
        CAPTURE(matrix.name);
        const bool is_table = matrix.name == "model.embed_tokens";
        CHECK(matrix.weight_error > 0);
        CHECK(matrix.weight_error < 0.3);
        CHECK((matrix.output_error > 0) == !is_table);
        CHECK(matrix.output_error < 0.3);
      }
      const Checkpoint result = Checkpoint::open(out).value();
      CHECK(result.find("model.layers.0.mlp.down_proj.weight_packed") != nullptr);
      CHECK(result.find("model.layers.0.mlp.down_proj.weight") == nullptr);
      CHECK((result.find("model.embed_tokens.weight_packed") != nullptr) == vocabulary);
      CHECK(result.find("model.norm.weight") != nullptr);
    }
  }
}

// The hidden states behind the last layer of the model at `dir`, codes as floats.
HostTensor hidden_states(const fs::path& dir, Device& device, const HiddenBatch& inputs) {
  const ModelConfig config = load_model_config(dir).value();
  const ModelOutline outline = Model::outline(config).value();
  const auto weights = open_weights(dir).value();
  HiddenBatch batch{.seq_lens = inputs.seq_lens, .hidden_states = copy_tensor(inputs.hidden_states)};
  for (int64_t i = 0; i < config.num_layers; ++i) {
    LayerSource source(*weights, outline, i, config.hidden_size);
    for (const Product& product : outline.layers[static_cast<size_t>(i)].products) {
      for (const Product::Matrix& matrix : product.matrices) {
        const TensorEntry* entry = weights->find(matrix.name + ".weight");
        if (!entry->quantized) continue;
        source.replace(entry->name, dequantize_rows(weights->quantized_rows(*entry, 0, entry->shape[0]).value()));
      }
    }
    batch.hidden_states = LayerRunner::create(device, config, source, 64, 64).value()->run(batch);
  }
  return std::move(batch.hidden_states);
}

TEST_CASE("what was written computes nearly what its source does") {
  Rng rng(test_seed());
  const auto device = make_cpu_device({.num_threads = 2}).value();
  // One with all kinds of biases, which AWQ divides; one with shared kv heads; one of 8-bit floats.
  // One with experts and a shared one.
  for (const char* name : {"ernie4_5_bias", "qwen3_tied_sharded", "../quantized/fp8_block_qwen3", "qwen2_moe"}) {
    const ModelCopy model(name);
    const ModelConfig config = load_model_config(model.path()).value();
    HiddenBatch inputs{.seq_lens = {40, 24},
                       .hidden_states = random_tensor(rng, DType::kF32, {64, config.hidden_size})};
    const HostTensor expected = hidden_states(model.path(), *device, inputs);
    const TempDir dir;
    for (const auto& [method, spec, limit] :
         {std::tuple{QuantizeMethod::kRtn, integer_spec(Codes::kInt8, 0, false), 0.02},
          {QuantizeMethod::kAwq, integer_spec(Codes::kInt8, 32, false), 0.02},
          {QuantizeMethod::kGptq, integer_spec(Codes::kInt8, 0, true), 0.02},
          {QuantizeMethod::kRtn, integer_spec(Codes::kInt4, 32, false, true), 0.2},
          {QuantizeMethod::kAwq, integer_spec(Codes::kInt4, 32, true), 0.2}}) {
      const fs::path out = dir.path() / fmt::format("{}-{}", static_cast<int>(method), weight_spec_name(spec));
      const QuantizeOptions options{.spec = spec, .method = method, .calibration = some_tokens(config, 8)};
      const auto report = quantize_model(model.path(), out, *device, options);
      REQUIRE_MESSAGE(report.ok(), report.status().message());
      const double error = relative_l2(hidden_states(out, *device, inputs), expected);
      // A token near a tie may be sent to another expert.
      const double slack = config.experts.num_experts > 0 ? 3 : 1;
      CHECK_MESSAGE(error < slack * limit, name, " ", out.filename().string(), ": ", error);
      CHECK(error > 1e-4);
    }
  }
}

TEST_CASE("experts are rounded to nearest; routers and layers for multi-token prediction stay floats") {
  const auto device = make_reference_device({}).value();
  for (const char* name : {"qwen3_moe", "deepseek_v2_lite", "ernie4_5_moe", "glm4_moe_mtp"}) {
    CAPTURE(name);
    const ModelCopy model(name);
    const ModelConfig config = load_model_config(model.path()).value();
    const Checkpoint before = Checkpoint::open(model.path()).value();
    for (const WeightSpec& spec : {integer_spec(Codes::kInt8), integer_spec(Codes::kInt4, 32, false, true)}) {
      const TempDir dir;
      const fs::path out = dir.path() / "out";
      const auto report = quantize_model(model.path(), out, *device, {.spec = spec});
      REQUIRE_MESSAGE(report.ok(), report.status().message());
      CHECK(report->bytes_after < report->bytes_before);
      const auto after = open_weights(out).value();
      CHECK(Model::verify(load_model_config(out).value(), *after).ok());
      std::ifstream config_file(out / "config.json");
      const std::string config_json((std::istreambuf_iterator<char>(config_file)), std::istreambuf_iterator<char>());
      const std::string mtp_layer = fmt::format("model.layers.{}.", config.num_layers);
      int num_experts = 0, num_routers = 0, num_mtp = 0;
      for (const TensorEntry& entry : before.entries()) {
        if (entry.name.find("layers.") == std::string::npos || entry.shape.size() != 2) continue;
        CAPTURE(entry.name);
        const TensorEntry* written = after->find(entry.name);
        REQUIRE(written != nullptr);
        const bool is_mtp = entry.name.starts_with(mtp_layer), is_router = entry.name.ends_with(".gate.weight");
        const bool is_expert = entry.name.find(".experts.") != std::string::npos;
        num_experts += is_expert && !is_mtp;
        num_routers += is_router && !is_mtp;
        num_mtp += is_mtp;
        if (is_mtp || is_router) {
          CHECK_FALSE(written->quantized);
          CHECK(config_json.find("\"" + entry.name.substr(0, entry.name.rfind('.')) + "\"") != std::string::npos);
        }
        if (is_mtp || !is_expert) continue;
        REQUIRE(written->quantized);
        const double error = relative_l2(dequantize_rows(after->quantized_rows(*written, 0, entry.shape[0]).value()),
                                         read(before, entry.name));
        CHECK(error > 0);
        CHECK(error < (spec.codes == Codes::kInt8 ? 0.01 : 0.15));
      }
      CHECK(num_experts > 0);
      CHECK(num_routers > 0);
      CHECK((num_mtp > 0) == (config.num_mtp_layers > 0));
    }
  }
}

TEST_CASE("an expert is calibrated on the tokens that its router sends to it") {
  const auto device = make_cpu_device({.num_threads = 2}).value();
  for (const char* name : {"qwen3_moe", "qwen2_moe", "mixtral", "deepseek_v2_lite"}) {
    CAPTURE(name);
    const ModelCopy model(name);
    const ModelConfig config = load_model_config(model.path()).value();
    const WeightSpec spec = integer_spec(Codes::kInt4, 32, false, true);
    const auto loss = [&](QuantizeMethod method, int num_sequences) {
      const TempDir dir;
      const auto report =
          quantize_model(model.path(), dir.path() / "out", *device,
                         {.spec = spec, .method = method, .calibration = some_tokens(config, num_sequences)});
      REQUIRE_MESSAGE(report.ok(), report.status().message());
      CHECK(
          Model::verify(load_model_config(dir.path() / "out").value(), *open_weights(dir.path() / "out").value()).ok());
      const int64_t num_layers = std::count(config.experts.layers.begin(), config.experts.layers.end(), true);
      int64_t num_tokens = 0, num_matrices = 0;
      double squared = 0;
      for (const MatrixReport& matrix : report->matrices) {
        CAPTURE(matrix.name);
        const bool is_expert = matrix.name.find(".experts.") != std::string::npos;
        CHECK((matrix.num_expert_tokens >= 0) == is_expert);
        CHECK((matrix.output_error > 0) == (matrix.num_expert_tokens != 0));
        CHECK(matrix.weight_error > 0);
        CHECK(matrix.weight_error < 0.3);
        num_tokens += is_expert ? matrix.num_expert_tokens : 0;
        num_matrices += is_expert ? 1 : 0;
        if (is_expert && matrix.output_error > 0) squared += matrix.output_error * matrix.output_error;
      }
      CHECK(num_matrices == 3 * num_layers * config.experts.num_experts);
      CHECK(num_tokens == 3 * num_layers * config.experts.num_experts_per_tok * report->num_calibration_tokens);
      return squared;
    };
    const double rounded = loss(QuantizeMethod::kRtn, 6);
    CHECK(loss(QuantizeMethod::kGptq, 6) < 0.95 * rounded);
    CHECK(loss(QuantizeMethod::kAwq, 6) < rounded);
  }
}

TEST_CASE("an expert without calibration tokens is rounded to nearest, and reported") {
  const auto device = make_reference_device({}).value();
  const ModelCopy model("qwen3_moe");  // 12 experts, of which a token uses 4
  const TempDir dir;
  const WeightSpec spec = integer_spec(Codes::kInt8);
  REQUIRE(quantize_model(model.path(), dir.path() / "rtn", *device, {.spec = spec}).ok());
  for (const QuantizeMethod method : {QuantizeMethod::kGptq, QuantizeMethod::kAwq}) {
    const fs::path out = dir.path() / std::to_string(static_cast<int>(method));
    const auto report =
        quantize_model(model.path(), out, *device, {.spec = spec, .method = method, .calibration = {{17}}});
    REQUIRE_MESSAGE(report.ok(), report.status().message());
    int num_unseen = 0;
    for (const MatrixReport& matrix : report->matrices) {
      if (matrix.num_expert_tokens != 0) continue;
      ++num_unseen;
      CHECK(matrix.output_error < 0);
      const auto codes = [&](const fs::path& of) {
        const auto weights = open_weights(of).value();
        const TensorEntry& entry = *weights->find(matrix.name + ".weight");
        return dequantize_rows(weights->quantized_rows(entry, 0, entry.shape[0]).value());
      };
      CHECK_TENSOR(equal_bits("codes", codes(out), codes(dir.path() / "rtn")));
    }
    CHECK(num_unseen == 3 * 3 * (12 - 4));
  }
}

TEST_CASE("experts in one tensor are refused") {
  const auto device = make_reference_device({}).value();
  const TempDir dir;
  const ModelCopy model("qwen3_moe_fused");
  const auto report = quantize_model(model.path(), dir.path() / "out", *device, {.spec = integer_spec(Codes::kInt8)});
  REQUIRE(!report.ok());
  CHECK(report.status().message().find("holds all experts of its layer") != std::string::npos);
  CHECK(fs::is_empty(dir.path()));
}

TEST_CASE("a run that is stopped, at any of its questions, leaves nothing") {
  const auto device = make_reference_device({}).value();
  const ModelCopy model("qwen3_tied_sharded");
  const TempDir dir;
  const QuantizeOptions options{.spec = integer_spec(Codes::kInt8, 0, false),
                                .method = QuantizeMethod::kGptq,
                                .calibration = some_tokens(load_model_config(model.path()).value(), 2)};
  for (const int stop_at : {1, 5, 20, 30}) {
    int asked = 0;
    const auto report =
        quantize_model(model.path(), dir.path() / "out", *device, options, {}, [&] { return ++asked == stop_at; });
    CHECK(report.status().code() == StatusCode::kCancelled);
    CHECK(fs::is_empty(dir.path()));
  }
}

TEST_CASE("what cannot be quantised is refused, and nothing is left") {
  const auto device = make_reference_device({}).value();
  const ModelCopy model("llama_plain");
  const TempDir dir;
  const auto error = [&](const QuantizeOptions& options) {
    const auto report = quantize_model(model.path(), dir.path() / "out", *device, options);
    CHECK(!report.ok());
    CHECK(fs::is_empty(dir.path()));
    return report.status().message();
  };
  CHECK(error({.spec = {}}).find("needs int8 or int4") != std::string::npos);
  CHECK(
      error({.spec = integer_spec(Codes::kInt4, 64), .method = QuantizeMethod::kAwq}).find("need calibration tokens") !=
      std::string::npos);
  CHECK(error({.spec = integer_spec(Codes::kInt4, 64), .calibration = {{1, 99999999}}})
            .find("calibration token 99999999") != std::string::npos);
  const ModelCopy of_codes("../quantized/gptq_int4_g32");
  const auto again = quantize_model(of_codes.path(), dir.path() / "out", *device, {.spec = integer_spec(Codes::kInt8)});
  CHECK(again.status().message().find("is quantised already (gptq)") != std::string::npos);
  CHECK(fs::is_empty(dir.path()));
  for (const char* name : {"model.layers.1.mlp.down_proj.weight", "model.embed_tokens.weight"}) {
    const ModelCopy damaged("llama_plain");
    const fs::path weights = damaged.path() / "model.safetensors";
    const auto position = static_cast<std::streamoff>(Checkpoint::open(weights)->find(name)->offset) + 3 * 4;
    const float nan = NAN;
    std::fstream file(weights, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(position).write(reinterpret_cast<const char*>(&nan), sizeof(nan));
    file.close();
    const QuantizeOptions options{.spec = integer_spec(Codes::kInt8), .quantize_vocabulary = true};
    const auto report = quantize_model(damaged.path(), dir.path() / "out", *device, options);
    REQUIRE(!report.ok());
    CHECK(report.status().message().find(std::string(name) + " [0, 3] is NaN or infinite") != std::string::npos);
    CHECK(fs::is_empty(dir.path()));
  }
}

}  // namespace
}  // namespace spate
