// Goal    A divergence of 0 means the same predictions, a larger one a larger loss, and no file can bring the reader down.
//         The graded questions have right answers, and the grader tells right from wrong.
// Method  Distributions whose divergence is computed in full; models/mini-qwen3 against itself, int8 and int4; a reference
//         file cut and changed at every kind of place.
#include "cli/divergence.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <sstream>

#include "base/test_support.h"
#include "cli/eval_data.h"
#include "quant/quantization.h"
#include "weights/file_text.h"

#include "base/test.h"

namespace spate {
namespace {

namespace fs = std::filesystem;

fs::path mini() { return repo_root() / "models" / "mini-qwen3"; }

// The num_top most probable tokens of a distribution, and the token that follows.
TokenLogprobs position_of(const std::vector<double>& probabilities, int32_t token_id, size_t num_top) {
  TokenLogprobs position{.token_id = token_id, .logprob = static_cast<float>(std::log(probabilities[token_id])), .rank = 1, .top = {}};
  for (size_t i = 0; i < probabilities.size(); ++i) {
    position.top.push_back({static_cast<int32_t>(i), static_cast<float>(std::log(probabilities[i]))});
  }
  std::ranges::stable_sort(position.top, std::greater(), &TokenLogprobs::Top::logprob);
  position.top.resize(num_top);
  return position;
}

double full_divergence(const std::vector<double>& p, const std::vector<double>& q) {
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) sum += p[i] * std::log(p[i] / q[i]);
  return sum;
}

std::vector<double> softmax(std::vector<double> logits) {
  double sum = 0;
  for (double& x : logits) sum += x = std::exp(x);
  for (double& x : logits) x /= sum;
  return logits;
}

std::unique_ptr<LoadedModel> load(const std::string& quantization) {
  LlmConfig llm;
  llm.model = mini().string();
  llm.device = "cpu";
  llm.quantization = parse_quantization(quantization).value();
  llm.max_num_seqs = 16;
  llm.kv_cache_bytes = 64 << 20;
  auto model = load_model(llm);
  REQUIRE_MESSAGE(model.ok(), model.status().to_string());
  (*model)->engine->start();
  return std::move(model).value();
}

// A reference of two short pieces over a vocabulary of 50 tokens.
ReferenceRun small_run() {
  std::vector<double> p(50, 0.5 / 49);
  p[7] = 0.5;
  ReferenceRun run{.vocab_size = 50, .tokenizer_hash = 0xabcd, .num_top = 3, .pieces = {}};
  run.pieces.push_back({.kind = PieceKind::kText, .token_ids = {1, 2, 3}, .first_scored = 1, .logprobs = {position_of(p, 2, 3), position_of(p, 3, 3)}});
  run.pieces.push_back({.kind = PieceKind::kAnswers, .token_ids = {4, 7}, .first_scored = 1, .logprobs = {position_of(p, 7, 3)}});
  return run;
}

void put(const fs::path& file, const std::string& bytes) { std::ofstream(file, std::ios::binary) << bytes; }

}  // namespace

TEST_CASE("divergence: a lower bound of that over the vocabulary, close to it, 0 for equal distributions") {
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  for (const double noise : {0.001, 0.1, 1.0}) {
    for (int i = 0; i < 50; ++i) {
      std::vector<double> logits(200), other(200);
      for (double& x : logits) x = 4 * normal(random);
      for (size_t j = 0; j < other.size(); ++j) other[j] = logits[j] + noise * normal(random);
      const std::vector<double> p = softmax(logits), q = softmax(other);
      const int32_t next = static_cast<int32_t>(random() % 200);
      const TokenLogprobs reference = position_of(p, next, 20);
      CHECK(position_divergence(reference, reference) == 0);
      const double kl = position_divergence(reference, position_of(q, next, 20)), full = full_divergence(p, q);
      CHECK(kl >= 0);
      CHECK(kl <= full + 1e-7);
      CHECK(kl >= 0.4 * full - 1e-7);
    }
  }
  // All of a vocabulary kept: the divergence itself. A token that only the reference keeps counts with the others.
  const std::vector<double> p = {0.5, 0.25, 0.25}, q = {0.25, 0.25, 0.5}, r = {0.001, 0.5, 0.499};
  CHECK(position_divergence(position_of(p, 0, 3), position_of(q, 0, 3)) == doctest::Approx(0.25 * std::log(2)).epsilon(1e-4));
  CHECK(position_divergence(position_of(p, 1, 1), position_of(r, 1, 1)) == doctest::Approx(0.25 * std::log(0.5) + 0.75 * std::log(1.5)).epsilon(1e-4));
}

TEST_CASE("divergence of mini-qwen3: exactly 0 from itself, more for int4 than for int8") {
  const TempDir dir;
  const fs::path file = dir.path() / "reference";
  std::vector<std::string> texts = load_eval_texts(mini() / "eval" / "text.txt").value();
  texts.resize(20);
  {
    const auto model = load("none");
    std::vector<OfflineRequest> questions(2);
    for (OfflineRequest& question : questions) {
      question.prompt_token_ids = model->tokenizer->encode("<|im_start|>user\nSort 9, 4, 7, 1<|im_end|>\n<|im_start|>assistant\n");
      question.sampling.temperature = 0;
      question.sampling.max_tokens = 40;
    }
    const auto run = run_reference(*model, std::move(questions), texts);
    REQUIRE_MESSAGE(run.ok(), run.status().to_string());
    REQUIRE(write_reference(file, *run).ok());
  }
  const auto divergence_of = [&](const std::string& quantization) {
    const auto model = load(quantization);
    const auto reference = read_reference(file, static_cast<int>(model->config.vocab_size), tokenizer_hash(*model->tokenizer));
    REQUIRE_MESSAGE(reference.ok(), reference.status().to_string());
    auto divergences = measure_divergence(*model, *reference);
    REQUIRE_MESSAGE(divergences.ok(), divergences.status().to_string());
    REQUIRE(divergences->size() == 2);
    REQUIRE((*divergences)["text"].num_tokens > 500);
    REQUIRE((*divergences)["answers"].num_tokens > 10);
    return std::move(divergences).value();
  };
  auto same = divergence_of("none"), int8 = divergence_of("int8"), int4 = divergence_of("int4");
  for (const char* kind : {"text", "answers"}) {
    CHECK(same[kind].kl == 0);
    CHECK(same[kind].equal_tops == 1);
    CHECK(int8[kind].kl > 0);
  }
  CHECK(int4["text"].kl > 2 * int8["text"].kl);
  CHECK(int4["text"].equal_tops < int8["text"].equal_tops);
  CHECK(int8["text"].equal_tops > 0.95);
}

TEST_CASE("reference file: reads what was written, names what is wrong") {
  const TempDir dir;
  const fs::path file = dir.path() / "reference";
  const ReferenceRun run = small_run();
  REQUIRE(write_reference(file, run).ok());
  const std::string good = read_text_file(file, 1 << 20).value();
  CHECK(good.size() == 40 + (12 + 3 * 4 + 2 * 28) + (12 + 2 * 4 + 28));
  const auto read = read_reference(file, 50, 0xabcd);
  REQUIRE_MESSAGE(read.ok(), read.status().to_string());
  REQUIRE(read->pieces.size() == 2);
  CHECK(read->pieces[1].kind == PieceKind::kAnswers);
  CHECK(read->pieces[0].token_ids == run.pieces[0].token_ids);
  for (int i = 0; i < 2; ++i) CHECK(position_divergence(run.pieces[0].logprobs[i], read->pieces[0].logprobs[i]) == 0);

  const auto message = [&](const std::string& bytes, int vocab_size = 50, uint64_t hash = 0xabcd) {
    put(file, bytes);
    const auto result = read_reference(file, vocab_size, hash);
    REQUIRE_FALSE(result.ok());
    CHECK(result.status().message().find(file.string()) != std::string::npos);
    return result.status().message();
  };
  const auto with = [&](size_t at, uint32_t value) {
    std::string bytes = good;
    std::memcpy(bytes.data() + at, &value, 4);
    return bytes;
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  CHECK(has(message(good, 8192), "made by a model of 50 tokens; this model has 8192"));
  CHECK(has(message(good, 50, 1), "another tokenizer"));
  CHECK(has(message(""), "it has 0 bytes"));
  CHECK(has(message("GGUF" + good), "begins with other than SPATEREF"));
  CHECK(has(message(with(8, 9)), "reference version 9"));
  for (const uint32_t num_top : {0u, 21u, ~0u}) CHECK(has(message(with(24, num_top)), "top tokens a position"));
  CHECK(has(message(with(28, 1)), "bytes behind the last of 1 pieces"));
  CHECK(has(message(with(28, ~0u)), "in a piece's head"));
  CHECK(has(message(with(40, 2)), "kind 2"));
  CHECK(has(message(with(44, 0xffffffff)), "cut: the piece at byte 40 needs"));  // 2^32 tokens
  for (const uint32_t first_scored : {0u, 3u, ~0u}) CHECK(has(message(with(48, first_scored)), "predictions from token"));
  CHECK(has(message(with(52, 50)), "byte 52: token 50 is outside the vocabulary of 50"));
  CHECK(has(message(with(64, 0x7fc00000)), "log-probability nan"));
  CHECK(has(message(with(52, 9)), "damaged"));  // another text
  CHECK(has(message(good + "x"), "1 bytes behind the last"));
  for (size_t size = 0; size < good.size(); ++size) message(good.substr(0, size));
  for (size_t at = 0; at < good.size(); ++at) {
    std::string bytes = good;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
    message(bytes);
  }
  CHECK(read_reference(dir.path() / "none", 50, 0xabcd).status().code() == StatusCode::kNotFound);
  CHECK_FALSE(read_reference(dir.path(), 50, 0xabcd).ok());
  CHECK(has(write_reference(dir.path() / "no" / "folder", run).message(), "cannot be written"));
}

TEST_CASE("graded questions: right answers are accepted, others are not") {
  const auto questions = load_eval_questions(mini() / "eval" / "graded.jsonl");
  REQUIRE_MESSAGE(questions.ok(), questions.status().to_string());
  std::map<std::string, int> counts;
  for (const EvalQuestion& question : *questions) {
    INFO(question.skill << ": " << question.answer);
    ++counts[question.skill];
    CHECK(is_right(question, question.answer));
    CHECK(is_right(question, "<think>\n1\n</think>\n\n" + question.answer + "\n"));
    CHECK_FALSE(is_right(question, question.answer + "1"));
    CHECK_FALSE(is_right(question, question.answer.substr(0, question.answer.size() - 1)));
    CHECK_FALSE(is_right(question, ""));

    const std::string asked = question.messages.back()["content"].get<std::string>();
    const bool is_quoted = question.skill.starts_with("copy") || question.skill.starts_with("needle");
    if (is_quoted) CHECK(asked.find(question.answer) != std::string::npos);
    if (question.skill.starts_with("sort") && question.answer.find_first_not_of("0123456789, ") == std::string::npos) {
      std::istringstream in(question.answer);
      std::vector<int> numbers;
      for (std::string word; in >> word;) numbers.push_back(std::stoi(word));
      CHECK((std::ranges::is_sorted(numbers) || std::ranges::is_sorted(numbers, std::greater())));
      for (const int number : numbers) CHECK(asked.find(std::to_string(number)) != std::string::npos);
    }
    if (question.skill.starts_with("json")) CHECK(nlohmann::json::parse(question.answer).is_object());
    if (question.skill.starts_with("tools")) CHECK(question.answer.find("\"arguments\": {") != std::string::npos);
  }
  CHECK(counts.size() == 21);
  for (const auto& [skill, count] : counts) CHECK_MESSAGE(count >= 10, skill);
}

}  // namespace spate
