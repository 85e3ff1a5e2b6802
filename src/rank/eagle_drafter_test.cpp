// Goal    An EAGLE-3 head computes what a PyTorch program computes from its published description; in an engine its
//         drafts are those of the whole text so far; a folder that is no head for the model is refused by name.
// Method  Goldens (tools/goldens/make_eagle_goldens.py) in f32 on the oracle. Drafts against a loop that knows no
//         cache, no batch and no proposer. Edited copies of a head's folder. drafts_test.cpp compares answers.
#include "rank/plain_drafts.h"

#include <fstream>

#include "base/tensor_compare.h"
#include "base/test_support.h"
#include "model/eagle_head.h"
#include "weights/safetensors.h"

#include "base/test.h"

namespace spate {
namespace {

std::filesystem::path eagle_dir(std::string_view name) { return repo_root() / "test" / "goldens" / "eagle" / name; }

// Model and head, whole texts at once.
class PlainEagle {
 public:
  explicit PlainEagle(std::string_view name)
      : weights_(Checkpoint::open(eagle_dir("target")).value()),
        config_(load_model_config(eagle_dir("target")).value()),
        files_(open_eagle(eagle_dir(name), config_, false).value()) {
    ModelOptions options{
        .act_dtype = DType::kF32,
        .kv_dtype = DType::kF32,
        .limits = {.max_model_len = kPlainLen, .max_num_batched_tokens = kPlainLen, .max_num_logits = 40}};
    model_ = Model::create(config_, *device_.device, {}, options).value();
    CHECK(model_->load(weights_).ok());
    model_->set_input_follower([this](const StepContext&, int64_t layer_idx, const Tensor& input) {
      for (size_t i = 0; i < head().layer_idxs.size(); ++i) {
        if (head().layer_idxs[i] != layer_idx) continue;
        const HostTensor rows = copy_rows(input);
        for (int64_t t = 0; t < input.dim(0); ++t) {
          std::copy_n(rows.span<float>().begin() + t * width(), width(),
                      known_.span<float>().begin() + (3 * t + static_cast<int64_t>(i)) * width());
        }
      }
    });
    options.source = files_.weights.get();
    head_ = EagleHead::create(files_.config, *model_, *device_.device, {}, options).value();
    const Status loaded = head_->load(*files_.weights);
    REQUIRE_MESSAGE(loaded.ok(), loaded.message());
    kv_ = KvStorage::create(*device_.device, model_->kv_layers(), kPlainBlocks).value();
    head_kv_ = KvStorage::create(*device_.device, head_->kv_layers(), kPlainBlocks).value();
  }

  const EagleConfig& head() const { return files_.config; }
  int64_t width() const { return config_.hidden_size; }

  // The head behind a text: of all tokens but the last, whose places they are.
  struct Outputs {
    HostTensor hidden, logits;
  };
  Outputs run(const std::vector<int32_t>& text) {
    const std::vector<int32_t> known(text.begin(), text.end() - 1);
    known_ = HostTensor(DType::kF32, {std::ssize(known), 3 * width()});
    const PlainStep step(0, known), next(0, {text.begin() + 1, text.end()});
    model_->forward(step.context(device_, kv_));
    return run_head(next, known_, false);
  }
  // One more token: what the head gave for the place before, and the token that it guessed.
  Outputs run_further(int position, const HostTensor& hidden, int32_t token_id) {
    return run_head(PlainStep(position, {token_id}), hidden, true);
  }

  std::vector<int32_t> behind(const std::vector<int32_t>& text, int k,
                              const std::vector<std::pair<int32_t, float>>& bias) {
    Outputs out = run(text);
    std::vector<int32_t> drafts;
    while (static_cast<int>(drafts.size()) < k) {
      const auto last_row = static_cast<ptrdiff_t>(out.logits.view().dim(0) - 1) * config_.vocab_size;
      const std::span<float> logits = out.logits.span<float>().subspan(static_cast<size_t>(last_row));
      for (const auto& [id, value] : bias) logits[static_cast<size_t>(id)] += value;
      drafts.push_back(static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin()));
      const HostTensor newest = last_row_of(out.hidden);
      out = run_further(static_cast<int>(text.size()) - 2 + static_cast<int>(drafts.size()), newest, drafts.back());
    }
    return drafts;
  }

  static HostTensor last_row_of(const HostTensor& rows) {
    return copy_rows(rows.view().rows(rows.view().dim(0) - 1, rows.view().dim(0)));
  }

 private:
  Outputs run_head(const PlainStep& step, const HostTensor& known, bool is_own) {
    const StepContext ctx = step.context(device_, head_kv_);
    const Tensor out = head_->forward(ctx, known.view(), is_own);
    Outputs outputs{.hidden = copy_rows(out), .logits = {}};
    const HostTensor all = iota_tensor(0, out.dim(0));
    // In pieces of max_num_logits.
    outputs.logits = HostTensor(DType::kF32, {out.dim(0), config_.vocab_size});
    for (int64_t begin = 0; begin < out.dim(0); begin += 40) {
      const int64_t end = std::min<int64_t>(out.dim(0), begin + 40);
      const HostTensor piece = copy_rows(head_->compute_logits(ctx, out, all.view().rows(begin, end)));
      std::ranges::copy(piece.span<float>(), outputs.logits.span<float>().begin() + begin * config_.vocab_size);
    }
    return outputs;
  }

  const PlainDevice device_;
  const Checkpoint weights_;
  const ModelConfig config_;
  const EagleFiles files_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<EagleHead> head_;
  KvStorage kv_, head_kv_;
  HostTensor known_;
};

HostTensor read_golden(const Checkpoint& file, const char* name) {
  HostTensor scratch;
  const TensorEntry& entry = *file.find(name);
  const Tensor rows = file.rows(entry, 0, entry.shape[0], scratch).value();
  HostTensor copy(DType::kF32, rows.dims());
  std::copy_n(rows.data<float>(), rows.num_elements(), copy.span<float>().data());
  return copy;
}

// Columns of the head's ids; every other one must say that the head lacks the token.
HostTensor drafted_columns(const EagleConfig& head, const HostTensor& logits) {
  const int64_t num_rows = logits.view().dim(0), vocab_size = logits.view().dim(1);
  HostTensor out(DType::kF32, {num_rows, head.draft_vocab_size});
  for (int64_t i = 0; i < num_rows; ++i) {
    std::vector<float> row(logits.span<float>().begin() + i * vocab_size,
                           logits.span<float>().begin() + (i + 1) * vocab_size);
    for (size_t d = 0; d < head.target_ids.size(); ++d) {
      out.span<float>()[static_cast<size_t>(i * head.draft_vocab_size) + d] =
          std::exchange(row[static_cast<size_t>(head.target_ids[d])], EagleHead::kNotDrafted);
    }
    CHECK(std::ranges::all_of(row, [](float logit) { return logit == EagleHead::kNotDrafted; }));
  }
  return out;
}

TEST_CASE("an EAGLE head computes what PyTorch computes") {
  for (const char* name : {"head", "head_all_tokens"}) {
    CAPTURE(name);
    PlainEagle eagle(name);
    const Checkpoint golden = Checkpoint::open(eagle_dir(name) / "goldens.safetensors").value();
    std::vector<int32_t> text;
    const HostTensor token_ids = read_golden(golden, "token_ids");
    for (const float id : token_ids.span<float>()) text.push_back(static_cast<int32_t>(id));
    const PlainEagle::Outputs all = eagle.run(text);
    CHECK(relative_l2(all.hidden, read_golden(golden, "hidden")) < 1e-5);
    CHECK(relative_l2(drafted_columns(eagle.head(), all.logits), read_golden(golden, "logits")) < 1e-5);
    const auto n = all.hidden.view().dim(0);
    const HostTensor before = copy_rows(all.hidden.view().rows(n - 2, n - 1));
    const PlainEagle::Outputs chained = eagle.run_further(static_cast<int>(n) - 1, before, text.back());
    CHECK(relative_l2(drafted_columns(eagle.head(), chained.logits), read_golden(golden, "chain_logits")) < 1e-5);
  }
}

TEST_CASE("the drafts of an EAGLE head are those of a plain loop over the whole text") {
  const Checkpoint weights = Checkpoint::open(eagle_dir("target")).value();
  for (const char* name : {"head", "head_all_tokens"}) {
    CAPTURE(name);
    PlainEagle plain(name);
    const std::vector<int32_t>& ids = plain.head().target_ids;
    const std::vector<Request> requests = requests_of({3, 32, 47, 65}, {ids[9], ids[20], ids[31]});
    RankRig rig{.model_dir = eagle_dir("target"), .weights = &weights, .back_end = &oracle_back_end()};
    rig.engine.limits.max_model_len = 128;
    rig.engine.limits.max_num_batched_tokens = 40;  // prompts in chunks, and what the head catches up with
    rig.engine.draft_source = DraftSource::kProposer;
    rig.engine.async_scheduling = false;
    for (const int num_drafts : {1, 6}) {
      CAPTURE(num_drafts);
      if (kIsThreadSanitized && (num_drafts > 1 || name != std::string_view("head"))) continue;
      rig.engine.speculative = {.method = SpeculativeMethod::kEagle,
                                .num_speculative_tokens = num_drafts,
                                .model = eagle_dir(name).string(),
                                .adaptive = false};
      for (const int tp : {1, 2}) {
        rig.tensor_parallel_size = tp;
        const RankRun run = run_requests(rig, requests);
        const DraftCounts expected = expected_counts(
            [&plain](const auto&... arguments) { return plain.behind(arguments...); }, requests, run, num_drafts);
        CHECK(run.num_drafts == expected.num_drafts);
        CHECK(run.num_drafts_accepted == expected.num_accepted);
        for (size_t i = 0; i < expected.accepted_at.size(); ++i)
          CHECK(run.num_accepted_at[i] == expected.accepted_at[i]);
        CHECK(expected.accepted_at[0] > 4);
      }
    }
  }
}

TEST_CASE("a folder that is no EAGLE head for the model is refused by name") {
  const ModelConfig target = load_model_config(eagle_dir("target")).value();
  const TempDir dir;
  const auto message = [&](const char* file, const std::string& from, const std::string& to) {
    const std::filesystem::path copy = dir.path() / std::to_string(std::hash<std::string>()(from + to));
    std::filesystem::copy(eagle_dir("head"), copy);
    std::string text = read_file_or_die(copy / file);
    REQUIRE_MESSAGE(text.find(from) != std::string::npos, from);
    text.replace(text.find(from), from.size(), to);
    std::ofstream(copy / file, std::ios::binary) << text;
    const auto files = open_eagle(copy, target, false);
    return files.ok() ? std::string() : files.status().message();
  };
  CHECK(message("config.json", "\"hidden_size\": 48", "\"hidden_size\": 64") ==
        "config.json: hidden_size is 64, needs 48: the head belongs to a model of that size");
  CHECK(message("config.json", "\"vocab_size\": 160", "\"vocab_size\": 161")
            .find("vocab_size is 161, needs 160: drafts must be tokens "
                  "of the same vocabulary") != std::string::npos);
  CHECK(message("config.json", "\"draft_vocab_size\": 56", "\"draft_vocab_size\": 161").find("draft_vocab_size") !=
        std::string::npos);
  CHECK(message("config.json", "\"draft_vocab_size\": 56", "\"draft_vocab_size\": 55") ==
        "tensor d2t is I64 [56], needs I64 [55]");
  CHECK(message("config.json", "\"num_hidden_layers\": 1", "\"num_hidden_layers\": 2")
            .find("num_hidden_layers is 2, needs 1") != std::string::npos);
  CHECK(message("config.json", "LlamaForCausalLMEagle3", "LlamaForCausalLM") ==
        "config.json: architectures is [LlamaForCausalLM], needs LlamaForCausalLMEagle3: an EAGLE-3 head");
  CHECK(message("config.json", "\"hidden_size\"", "\"eagle_aux_hidden_state_layer_ids\": [1, 3, 6], \"hidden_size\"") ==
        "config.json: the head reads what layer 6 takes (eagle_aux_hidden_state_layer_ids), needs a layer in [1, 5] of "
        "the model's 6");
  CHECK(message("config.json", "\"hidden_size\"", "\"eagle_aux_hidden_state_layer_ids\": [1, 3], \"hidden_size\"") ==
        "config.json: eagle_aux_hidden_state_layer_ids has 2 entries, needs 3");
  for (const std::string key :
       {"norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "parallel_drafting"}) {
    CHECK(message("config.json", "\"hidden_size\"", "\"" + key + "\": true, \"hidden_size\"") ==
          "config.json: " + key + " is true, needs false: such heads are not served");
    CHECK(message("config.json", "\"hidden_size\"", "\"" + key + "\": false, \"hidden_size\"").empty());
    CHECK(message("config.json", "\"hidden_size\"", "\"" + key + "\": null, \"hidden_size\"").empty());
    CHECK(message("config.json", "\"hidden_size\"", "\"" + key + "\": \"yes\", \"hidden_size\"").find(key) !=
          std::string::npos);
  }
  CHECK(message("config.json", "\"hidden_size\"", "\"sliding_window\": 512, \"hidden_size\"") ==
        "config.json: sliding_window is 512, needs null: a head that sees all tokens is served");
  for (const char* window : {"null", "512, \"use_sliding_window\": false", "null, \"use_sliding_window\": null"}) {
    CHECK(message("config.json", "\"hidden_size\"", std::string("\"sliding_window\": ") + window + ", \"hidden_size\"")
              .empty());
  }
  // As of other makers' tools.
  for (const char* architecture :
       {"Eagle3LlamaForCausalLM", "Eagle3Speculator", "Eagle3DraftModel", "EagleLlamaForCausalLM"}) {
    CHECK(message("config.json", "LlamaForCausalLMEagle3", architecture) ==
          std::string("config.json: architectures is [") + architecture +
              "], needs LlamaForCausalLMEagle3: an EAGLE-3 head");
  }
  CHECK(message("model.safetensors", "\"d2t\"", "\"d3t\"").find("no tensor d2t: it says which") == 0);
  CHECK(message("model.safetensors", "\"t2d\"", "\"t3d\"").find("no tensor t2d: it says which") == 0);
}

// With a table's bytes changed: an id out of range, a token twice, tables that disagree.
TEST_CASE("tables of an EAGLE head that name no token, or one twice, are refused") {
  const ModelConfig target = load_model_config(eagle_dir("target")).value();
  const Checkpoint head = Checkpoint::open(eagle_dir("head")).value();
  const auto message = [&](const char* name, size_t at, int64_t value) {
    const TempDir dir;
    std::filesystem::copy(eagle_dir("head"), dir.path(), std::filesystem::copy_options::recursive);
    std::string text = read_file_or_die(dir.path() / "model.safetensors");
    const TensorEntry& entry = *head.find(name);
    const size_t element = entry.dtype_name == "I64" ? 8 : 1;
    std::memcpy(text.data() + entry.offset + at * element, &value, element);
    std::ofstream(dir.path() / "model.safetensors", std::ios::binary) << text;
    const auto files = open_eagle(dir.path(), target, false);
    return files.ok() ? std::string() : files.status().message();
  };
  CHECK(message("d2t", 55, 105) == "tensor d2t: 55 + 105 is no token of the 160, or comes twice");
  CHECK(message("d2t", 3, -4) == "tensor d2t: 3 + -4 is no token of the 160, or comes twice");
  CHECK(message("d2t", 3, INT64_MAX).find("tensor d2t: 3 + ") == 0);
  CHECK(message("d2t", 0, 0).find("tensor") == 0);
  const auto files = open_eagle(eagle_dir("head"), target, false).value();
  const int32_t first = files.config.target_ids[0];
  CHECK(message("d2t", 1, first - 1) ==
        fmt::format("tensor d2t: 1 + {} is no token of the 160, or comes twice", first - 1));
  CHECK(message("t2d", static_cast<size_t>(first), 0) ==
        fmt::format("tensors d2t and t2d disagree: d2t names token {}, t2d leaves it out", first));
}

}  // namespace
}  // namespace spate
