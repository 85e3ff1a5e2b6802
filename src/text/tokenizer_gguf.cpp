#include <algorithm>
#include <optional>
#include <span>

#include "text/bpe_model.h"
#include "text/tokenizer.h"
#include "text/tokenizer_parts.h"
#include "text/unicode.h"
#include "weights/gguf/gguf.h"
#include "weights/gguf/gguf_path.h"

namespace spate {
namespace {

// tokenizer.ggml.token_type
enum class TokenType : int64_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

// DeepSeek-LLM splits by listed scripts rather than by category: cased letters, punctuation of ASCII and full width,
// and the scripts of East Asia. Six letters are escaped: their normal form is another letter, and an editor may
// normalize a file.
const char* const kDeepSeekLlmPatterns[] = {
    R"([\r\n])",
    "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-"
    "ὅὈ-"
    "Ὅὐ-"
    "ὗὙὛὝὟ-\u1F7Dᾀ-ᾴᾶ-ᾼ\u1FBEῂ-ῄῆ-ῌῐ-\u1FD3ῖ-\u1FDBῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212A-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-"
    "ꚛꜢ-"
    "ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-"
    "𞥃]"
    "+",
    R"(\s?[!-/:-~！-／：-～‘-‟　-。]+)",
    R"(\s+$)",
    R"([一-龥ࠀ-一가-퟿]+)",
    R"(\p{N}+)",
};
const char* const kDeepSeekV3Patterns[] = {
    R"(\p{N}{1,3})",
    R"([一-龥぀-ゟ゠-ヿ]+)",
};

Status add_isolated_split(std::string_view pattern, PreTokenizer& pre_tokenizer) {
  ASSIGN_OR_RETURN(SplitMatcher matcher, SplitMatcher::from_regex(pattern));
  pre_tokenizer.add_step(SplitStep{std::move(matcher), SplitBehavior::kIsolated});
  return ok_status();
}

void add_isolated_split(SplitKind kind, PreTokenizer& pre_tokenizer) {
  pre_tokenizer.add_step(SplitStep{SplitMatcher::from_kind(kind), SplitBehavior::kIsolated});
}

// What tokenizer.ggml.pre names: how a byte-level vocabulary splits its text before merging, as the tokenizer.json that
// the file was converted from has it.
struct SplitRecipe {
  std::string_view names;  // separated by spaces
  std::span<const char* const> patterns;
  std::optional<SplitKind> last;  // after the patterns
  bool ignore_merges = false;     // a piece that is a token is that token, whatever the merges say
};

const char* const kDigitPatterns[] = {R"(\p{N})"};
const char* const kDefaultPatterns[] = {
    R"([\p{P}$+<=>^~|]+)",
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S))",
    R"(\p{N}+)",
    R"([0-9][0-9][0-9])",
};
const char* const kFalconPatterns[] = {
    R"([\p{P}$+<=>^~|`]+)",
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S))",
    R"([0-9][0-9][0-9])",
};
const char* const kDeepSeekCoderPatterns[] = {
    R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", R"([一-龥ࠀ-一가-퟿]+)", R"(\p{N})",
};
const char* const kBloomPatterns[] = {R"( ?[^(\s|.,!?…。，、।۔،)]+)"};
const char* const kVikingPatterns[] = {R"( ?[^(\s|.,!?…。，、।۔،)]+)", R"(\p{N})"};
const char* const kQwen35Patterns[] = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
};
// Words end where lower case turns to upper.
const char* const kTekkenPatterns[] = {
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
};
const char* const kGpt4oPatterns[] = {
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
};

const SplitRecipe kSplitRecipes[] = {
    {"gpt-2 mpt olmo phi-2 jais trillion granite-docling gigachat roberta-bpe", {}, SplitKind::kGpt2},
    {"llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2", {}, SplitKind::kLlama3, true},
    {"dbrx smaug-bpe glm4 chatglm-bpe", {}, SplitKind::kLlama3},
    {"qwen2 deepseek-r1-qwen stablelm2 hunyuan megrez kormo", {}, SplitKind::kQwen2},
    {"qwen35", kQwen35Patterns, {}},
    {"starcoder refact command-r smollm codeshell exaone minerva-7b", kDigitPatterns, SplitKind::kGpt2},
    {"deepseek-llm", kDeepSeekLlmPatterns, {}},
    {"deepseek-coder", kDeepSeekCoderPatterns, {}},
    {"deepseek-v3 hunyuan-dense", kDeepSeekV3Patterns, SplitKind::kDeepSeekV3},
    {"falcon", kFalconPatterns, {}},
    {"tekken", kTekkenPatterns, {}, true},
    {"gpt-4o llama4", kGpt4oPatterns, {}},
    {"poro-chat bloom gpt3-finnish", kBloomPatterns, {}},
    {"viking", kVikingPatterns, {}},
    {"default", kDefaultPatterns, {}},
};

const SplitRecipe* find_recipe(std::string_view pre) {
  for (const SplitRecipe& recipe : kSplitRecipes) {
    for (std::string_view names = recipe.names; !names.empty();) {
      const size_t end = std::min(names.find(' '), names.size());
      if (names.substr(0, end) == pre) return &recipe;
      names.remove_prefix(std::min(end + 1, names.size()));
    }
  }
  return nullptr;
}

Status add_splits(std::string_view pre, PreTokenizer& pre_tokenizer, BpeOptions& options) {
  const SplitRecipe* recipe = find_recipe(pre);
  if (recipe == nullptr) {
    std::string known;
    for (const SplitRecipe& one : kSplitRecipes) known += fmt::format("{}{}", known.empty() ? "" : " ", one.names);
    return unimplemented("tokenizer.ggml.pre '{}'; known: {}", pre, known);
  }
  for (const char* pattern : recipe->patterns) RETURN_IF_ERROR(add_isolated_split(pattern, pre_tokenizer));
  if (recipe->last) add_isolated_split(*recipe->last, pre_tokenizer);
  options.ignore_merges = recipe->ignore_merges;
  return ok_status();
}

Result<MergeTable> read_merges(const GgufFile& file, const Vocabulary& vocabulary) {
  ASSIGN_OR_RETURN(const std::vector<std::string_view> lines, file.get_strings("tokenizer.ggml.merges"));
  MergeTable merges;
  merges.reserve(lines.size());
  std::string merged;
  for (size_t rank = 0; rank < lines.size(); ++rank) {
    const size_t space = lines[rank].find(' ', 1);
    if (space == std::string_view::npos) return data_loss("merges[{}]: '{}' has no space", rank, lines[rank]);
    const std::string_view left = lines[rank].substr(0, space), right = lines[rank].substr(space + 1);
    merged.assign(left).append(right);
    const int32_t left_id = vocabulary.find(left), right_id = vocabulary.find(right),
                  merged_id = vocabulary.find(merged);
    if (left_id == kNoToken || right_id == kNoToken || merged_id == kNoToken) {
      return data_loss("merges[{}]: '{}' has a token that is not in the vocabulary", rank, lines[rank]);
    }
    merges.assign(left_id, right_id, {static_cast<uint32_t>(rank), merged_id});
  }
  return merges;
}

Status read_byte_level_model(const GgufFile& file, TokenizerParts& parts) {
  BpeOptions options{.raw_bytes = true};
  std::string_view pre = "default";  // the oldest files do not say
  if (file.find("tokenizer.ggml.pre") != nullptr) {
    ASSIGN_OR_RETURN(pre, file.get_string("tokenizer.ggml.pre"));
  }
  RETURN_IF_ERROR(add_splits(pre, parts.pre_tokenizer, options));
  ASSIGN_OR_RETURN(MergeTable merges, read_merges(file, parts.vocabulary));
  parts.model = std::make_unique<BpeModel>(parts.vocabulary, std::move(merges), std::move(options));
  parts.decoder.add_stage(ByteLevelDecoder{});
  return ok_status();
}

Status check_one_each(std::string_view key, size_t count, const Vocabulary& vocabulary) {
  if (count == static_cast<size_t>(vocabulary.size())) return ok_status();
  return data_loss("{} has {} elements; the vocabulary has {} tokens", key, count, vocabulary.size());
}

// SentencePiece BPE as Llama 2 has it: spaces are U+2581, one in front of the text; merges by score.
Status read_sentence_piece_model(const GgufFile& file, TokenizerParts& parts) {
  constexpr std::string_view kSpaceMark = "\u2581";
  ASSIGN_OR_RETURN(const std::vector<float> scores, file.get_floats("tokenizer.ggml.scores"));
  RETURN_IF_ERROR(check_one_each("tokenizer.ggml.scores", scores.size(), parts.vocabulary));
  bool add_space_prefix = true;
  if (file.find("tokenizer.ggml.add_space_prefix") != nullptr) {
    ASSIGN_OR_RETURN(add_space_prefix, file.get_bool("tokenizer.ggml.add_space_prefix"));
  }
  if (add_space_prefix) parts.normalizer.add_step(PrependStep{std::string(kSpaceMark)});
  ASSIGN_OR_RETURN(SplitMatcher space, SplitMatcher::from_literal(" "));
  parts.normalizer.add_step(ReplaceStep{std::move(space), std::string(kSpaceMark)});
  BpeOptions options{.fuse_unk = true, .byte_fallback = true};
  if (parts.unk_token) options.unk_token = parts.unk_token->text;
  parts.model =
      std::make_unique<BpeModel>(parts.vocabulary, merges_from_scores(parts.vocabulary, scores), std::move(options));
  ASSIGN_OR_RETURN(SplitMatcher metaspace, SplitMatcher::from_literal(kSpaceMark));
  parts.decoder.add_stage(ReplaceDecoder{std::move(metaspace), " "});
  parts.decoder.add_stage(ByteFallbackDecoder{});
  parts.decoder.add_stage(FuseDecoder{});
  if (add_space_prefix) parts.decoder.add_stage(StripDecoder{.content = " ", .start = 1, .stop = 0});
  return ok_status();
}

Status read_special_token(const GgufFile& file, std::string_view name, const Vocabulary& vocabulary,
                          std::optional<SpecialToken>& token) {
  const std::string key = fmt::format("tokenizer.ggml.{}_token_id", name);
  if (file.find(key) == nullptr) return ok_status();
  ASSIGN_OR_RETURN(const int64_t id, file.get_int(key));
  if (id < 0 || id >= vocabulary.size()) {
    return data_loss("{} is {}; the vocabulary has {} tokens", key, id, vocabulary.size());
  }
  token = SpecialToken{std::string(vocabulary.text(static_cast<int32_t>(id))), static_cast<int32_t>(id)};
  return ok_status();
}

// Texts that llama.cpp takes for control tokens whatever their type is: Aquila's <|endoftext|> is a normal token.
constexpr std::string_view kControlTexts[] = {"<|endoftext|>",   "<|im_end|>",    "<|eot_id|>", "<|eom_id|>",
                                              "<|end_of_text|>", "<end_of_turn>", "<|end|>"};

TokenType token_type(int64_t type, std::string_view text) {
  const bool is_control =
      std::find(std::begin(kControlTexts), std::end(kControlTexts), text) != std::end(kControlTexts);
  return is_control ? TokenType::kControl : static_cast<TokenType>(type);
}

// Phi-3's special tokens, but for three, take the white space behind them. Files do not say so: as in llama.cpp, the
// model's name does.
bool is_phi3(const GgufFile& file) {
  const Result<std::string_view> value = file.get_string("general.name");
  if (!value.ok()) return false;
  std::string name(*value);
  for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return name.find("phi-3") != std::string::npos || name.find("phi3") != std::string::npos;
}
constexpr std::string_view kPhi3KeepsSpaceBehind[] = {"<unk>", "<s>", "<|endoftext|>"};

// Tokens of these types are found in a text before it is split.
bool is_added(TokenType type) {
  return type == TokenType::kControl || type == TokenType::kUserDefined || type == TokenType::kUnknown;
}

Status read_vocabulary(const GgufFile& file, TokenizerParts& parts) {
  ASSIGN_OR_RETURN(const std::vector<std::string_view> tokens, file.get_strings("tokenizer.ggml.tokens"));
  parts.vocabulary.reserve(tokens.size());
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (!is_valid_utf8(tokens[id])) return data_loss("tokenizer.ggml.tokens[{}] is not UTF-8", id);
    RETURN_IF_ERROR(parts.vocabulary.add(tokens[id], static_cast<int64_t>(id)));
  }
  std::vector<int64_t> types;
  if (file.find("tokenizer.ggml.token_type") != nullptr) {
    ASSIGN_OR_RETURN(types, file.get_ints("tokenizer.ggml.token_type"));
    RETURN_IF_ERROR(check_one_each("tokenizer.ggml.token_type", types.size(), parts.vocabulary));
  }
  types.resize(tokens.size(), static_cast<int64_t>(TokenType::kNormal));
  const bool strips_right = is_phi3(file);
  for (size_t id = 0; id < tokens.size(); ++id) {
    const TokenType type = token_type(types[id], tokens[id]);
    if (!is_added(type)) continue;
    const bool keeps_space = std::find(std::begin(kPhi3KeepsSpaceBehind), std::end(kPhi3KeepsSpaceBehind),
                                       tokens[id]) != std::end(kPhi3KeepsSpaceBehind);
    RETURN_IF_ERROR(parts.add_token({.content = std::string(tokens[id]),
                                     .rstrip = strips_right && !keeps_space,
                                     .normalized = false,
                                     .special = type != TokenType::kUserDefined}));
  }
  return ok_status();
}

// BOS and EOS as add_bos_token and add_eos_token ask for.
Status add_post_processor(const GgufFile& file, bool adds_bos_by_default, TokenizerParts& parts) {
  bool adds_bos = adds_bos_by_default, adds_eos = false;
  if (file.find("tokenizer.ggml.add_bos_token") != nullptr) {
    ASSIGN_OR_RETURN(adds_bos, file.get_bool("tokenizer.ggml.add_bos_token"));
  }
  if (file.find("tokenizer.ggml.add_eos_token") != nullptr) {
    ASSIGN_OR_RETURN(adds_eos, file.get_bool("tokenizer.ggml.add_eos_token"));
  }
  std::vector<PostProcessorPiece> pieces;
  if (adds_bos && parts.bos_token) pieces.push_back({.ids = {parts.bos_token->id}});
  pieces.push_back({.is_text = true, .ids = {}});
  if (adds_eos && parts.eos_token) pieces.push_back({.ids = {parts.eos_token->id}});
  parts.post_processor.add_template(std::move(pieces));
  return ok_status();
}

Status read_tokenizer(const GgufFile& file, TokenizerParts& parts) {
  ASSIGN_OR_RETURN(const std::string_view model, file.get_string("tokenizer.ggml.model"));
  if (model != "gpt2" && model != "llama") {
    return unimplemented("tokenizer.ggml.model '{}'; known: gpt2, llama", model);
  }
  RETURN_IF_ERROR(read_vocabulary(file, parts));
  RETURN_IF_ERROR(read_special_token(file, "bos", parts.vocabulary, parts.bos_token));
  RETURN_IF_ERROR(read_special_token(file, "eos", parts.vocabulary, parts.eos_token));
  RETURN_IF_ERROR(read_special_token(file, "unknown", parts.vocabulary, parts.unk_token));
  RETURN_IF_ERROR(read_special_token(file, "padding", parts.vocabulary, parts.pad_token));
  if (model == "gpt2")
    RETURN_IF_ERROR(read_byte_level_model(file, parts));
  else
    RETURN_IF_ERROR(read_sentence_piece_model(file, parts));
  RETURN_IF_ERROR(add_post_processor(file, model == "llama", parts));
  if (file.find("tokenizer.chat_template") != nullptr) {
    ASSIGN_OR_RETURN(const std::string_view source, file.get_string("tokenizer.chat_template"));
    parts.chat_templates.push_back({"default", std::string(source)});
  }
  if (file.find("tokenizer.chat_templates") != nullptr) {  // the names of others
    ASSIGN_OR_RETURN(const std::vector<std::string_view> names, file.get_strings("tokenizer.chat_templates"));
    for (const std::string_view name : names) {
      ASSIGN_OR_RETURN(const std::string_view source, file.get_string(fmt::format("tokenizer.chat_template.{}", name)));
      parts.chat_templates.push_back({std::string(name), std::string(source)});
    }
  }
  return ok_status();
}

}  // namespace

Result<std::unique_ptr<const Tokenizer>> Tokenizer::from_gguf(const std::filesystem::path& gguf_file) {
  ASSIGN_OR_RETURN(const GgufFile file, GgufFile::open(gguf_files(gguf_file).front()));
  auto parts = std::make_unique<TokenizerParts>();
  if (const Status status = read_tokenizer(file, *parts); !status.ok()) return status.with_context(gguf_file.string());
  return std::make_unique<const Tokenizer>(std::move(parts));
}

}  // namespace spate
