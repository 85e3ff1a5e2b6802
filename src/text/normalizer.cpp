#include "text/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>

#include "text/byte_alphabet.h"
#include "text/unicode.h"

namespace spate {
namespace {

using CodePoints = std::vector<utf8proc_int32_t>;

// Calls fn(code point, its bytes) for each character.
template <typename Fn>
void for_each_char(std::string_view text, Fn&& fn) {
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = decode_utf8(text, pos);
    fn(c.value, text.substr(pos, c.size_bytes));
    pos += c.size_bytes;
  }
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

bool is_nfc_already(std::string_view text) {
  const uint8_t* classes = char_class_table();
  for (size_t pos = 0; pos < text.size();) {
    if (static_cast<unsigned char>(text[pos]) < 0x80) {
      ++pos;
      continue;
    }
    const Utf8Char c = decode_utf8(text, pos);
    if (!(char_class(classes, c.value) & kCharNfcInert)) return false;
    pos += c.size_bytes;
  }
  return true;
}

int combining_class(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

CodePoints decompose(std::string_view text, bool compatibility) {
  const auto options =
      static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE | (compatibility ? UTF8PROC_COMPAT : 0));
  CodePoints out;
  out.reserve(text.size());
  for_each_char(text, [&](char32_t c, std::string_view) {
    utf8proc_int32_t parts[32];  // the longest decomposition has 18
    const utf8proc_ssize_t count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts, 32, options, nullptr);
    if (count >= 0 && count <= 32) {
      out.insert(out.end(), parts, parts + count);
    } else {
      out.push_back(static_cast<utf8proc_int32_t>(c));
    }
  });
  // Canonical order: marks between two starters sorted by class. utf8proc_map does this by exchanging neighbours,
  // which takes minutes for a megabyte of alternating marks; a stable sort takes milliseconds.
  for (size_t begin = 0; begin < out.size();) {
    if (combining_class(out[begin]) == 0) {
      ++begin;
      continue;
    }
    size_t end = begin + 1;
    while (end < out.size() && combining_class(out[end]) != 0) ++end;
    std::stable_sort(out.begin() + static_cast<ptrdiff_t>(begin), out.begin() + static_cast<ptrdiff_t>(end),
                     [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    begin = end;
  }
  return out;
}

void append_lowercase(char32_t c, std::string& out) {
  if (c == 0x130) {  // the only character whose lower case is two: i and a dot above
    out += "i\xCC\x87";
  } else {
    append_utf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), out);
  }
}

std::string to_lowercase(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for_each_char(text, [&](char32_t c, std::string_view) { append_lowercase(c, out); });
  return out;
}

std::string_view strip_space(std::string_view text, bool left, bool right) {
  const uint8_t* classes = char_class_table();
  const auto is_space_at = [&](size_t pos) { return char_class(classes, decode_utf8(text, pos).value) & kCharSpace; };
  while (left && !text.empty() && is_space_at(0)) text.remove_prefix(decode_utf8(text, 0).size_bytes);
  while (right && !text.empty()) {
    const size_t last = previous_utf8(text, text.size());
    if (!is_space_at(last)) break;
    text = text.substr(0, last);
  }
  return text;
}

bool is_chinese(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

// Control, format, private use: what BERT's cleaning removes. Tab and line breaks count as space before this.
bool is_bert_control(char32_t c) {
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF || category == UTF8PROC_CATEGORY_CO;
}

std::string apply_bert(const BertStep& step, std::string_view text) {
  const uint8_t* classes = char_class_table();
  std::string cleaned;
  cleaned.reserve(text.size());
  for_each_char(text, [&](char32_t c, std::string_view bytes) {
    if (step.clean_text) {
      const bool is_space = char_class(classes, c) & kCharSpace;
      const bool is_plain_space = c == '\t' || c == '\n' || c == '\r';
      if (c == 0 || c == 0xFFFD || (!is_plain_space && is_bert_control(c))) return;
      if (is_space) {
        cleaned += ' ';
        return;
      }
    }
    if (step.handle_chinese_chars && is_chinese(c)) {
      cleaned.append(" ").append(bytes).append(" ");
    } else {
      cleaned += bytes;
    }
  });
  if (step.strip_accents) {
    const std::string decomposed = to_unicode_form(cleaned, UnicodeForm::kNfd);
    cleaned.clear();
    for_each_char(decomposed, [&](char32_t c, std::string_view bytes) {
      if (utf8proc_category(static_cast<utf8proc_int32_t>(c)) != UTF8PROC_CATEGORY_MN) cleaned += bytes;
    });
  }
  return step.lowercase ? to_lowercase(cleaned) : cleaned;
}

std::string apply_nmt(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for_each_char(text, [&](char32_t c, std::string_view bytes) {
    const bool removed =
        (c >= 1 && c <= 8) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
    const bool is_space = c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 ||
                          (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF ||
                          c == 0xFFFD;
    if (removed) return;
    out += is_space ? std::string_view(" ") : bytes;
  });
  return out;
}

struct StepRunner {
  std::string_view text;

  std::string operator()(const UnicodeFormStep& step) const { return to_unicode_form(text, step.form); }
  std::string operator()(const LowercaseStep&) const { return to_lowercase(text); }
  std::string operator()(const StripStep& step) const { return std::string(strip_space(text, step.left, step.right)); }
  std::string operator()(const StripAccentsStep&) const {
    const uint8_t* classes = char_class_table();
    std::string out;
    for_each_char(text, [&](char32_t c, std::string_view bytes) {
      if (!(char_class(classes, c) & kCharMark)) out += bytes;
    });
    return out;
  }
  std::string operator()(const PrependStep& step) const {
    return text.empty() ? std::string() : step.prefix + std::string(text);
  }
  std::string operator()(const ReplaceStep& step) const {
    std::string out;
    out.reserve(text.size());
    for_each_match(step.pattern, text, [&](size_t start, size_t end, bool is_match) {
      out += is_match ? std::string_view(step.content) : text.substr(start, end - start);
    });
    return out;
  }
  std::string operator()(const PrecompiledStep& step) const { return step.charsmap.normalize(text); }
  std::string operator()(const BertStep& step) const { return apply_bert(step, text); }
  std::string operator()(const NmtStep&) const { return apply_nmt(text); }
  std::string operator()(const NormalizeBytesStep&) const { return to_byte_level(text); }
};

}  // namespace

std::string to_unicode_form(std::string_view text, UnicodeForm form) {
  const bool composes = form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc;
  if (is_ascii(text) || (form == UnicodeForm::kNfc && is_nfc_already(text))) return std::string(text);
  CodePoints code_points = decompose(text, form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd);
  auto count = static_cast<utf8proc_ssize_t>(code_points.size());
  if (composes) {
    count = utf8proc_normalize_utf32(code_points.data(), count,
                                     static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  }
  std::string out;
  out.reserve(text.size());
  for (utf8proc_ssize_t i = 0; i < count; ++i)
    append_utf8(static_cast<char32_t>(code_points[static_cast<size_t>(i)]), out);
  return out;
}

namespace {

// How many leading characters of a step's result come from the first `num_from_start` characters of `text`, by the offsets that the
// `tokenizers` library keeps: a character that replaces others has the place of the last of them.
size_t count_from_start(const NormalizerStep& step, std::string_view text, size_t num_from_start) {
  const auto prefix_bytes = [&](size_t num_chars) {
    size_t bytes = 0;
    while (num_chars-- > 0 && bytes < text.size()) bytes += decode_utf8(text, bytes).size_bytes;
    return bytes;
  };
  const auto num_chars = [](std::string_view part) {
    return static_cast<size_t>(
        std::count_if(part.begin(), part.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
  };
  const std::string_view start = text.substr(0, prefix_bytes(num_from_start));
  if (const auto* strip = std::get_if<StripStep>(&step)) {
    const size_t num_removed = num_chars(text) - num_chars(strip_space(text, strip->left, false));
    return num_from_start - std::min(num_from_start, num_removed);
  }
  if (const auto* replace = std::get_if<ReplaceStep>(&step)) {
    size_t count = 0;
    for_each_match(replace->pattern, text, [&](size_t begin, size_t end, bool is_match) {
      if (!is_match) count += num_chars(start.substr(std::min(begin, start.size()), end - begin));
      if (is_match && end <= start.size()) count += num_chars(replace->content);
    });
    return count;
  }
  // What is left of the beginning alone: nothing where it was removed.
  const std::string result = std::visit(StepRunner{start}, step);
  return num_chars(result);
}

}  // namespace

void Normalizer::drop_prepend() {
  std::erase_if(steps_, [](const NormalizerStep& step) { return std::holds_alternative<PrependStep>(step); });
}

std::string_view Normalizer::normalize(std::string_view text, std::string& storage, bool* keeps_start) const {
  size_t num_from_start = 1;
  for (const NormalizerStep& step : steps_) {
    const auto* form = std::get_if<UnicodeFormStep>(&step);
    if (form != nullptr && form->form == UnicodeForm::kNfc && is_nfc_already(text))
      continue;  // the usual case: no copy
    if (keeps_start != nullptr) num_from_start = count_from_start(step, text, num_from_start);
    std::string result = std::visit(StepRunner{text}, step);
    storage = std::move(result);
    text = storage;
  }
  if (keeps_start != nullptr) *keeps_start = num_from_start > 0;
  return text;
}

}  // namespace spate
