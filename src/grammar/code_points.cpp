#include "grammar/code_points.h"

#include <algorithm>
#include <utility>

namespace spate {
namespace {

constexpr char32_t kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF;
constexpr char32_t kReplacement = 0xFFFD;

// Splits [first, last] until all characters of a part have as many bytes and differ in trailing full ranges only.
void split(char32_t first, char32_t last, std::vector<ByteRangeSequence>& out) {
  static constexpr char32_t kLastOfLength[] = {0x7F, 0x7FF, 0xFFFF};
  for (const char32_t limit : kLastOfLength) {
    if (first <= limit && limit < last) {
      split(first, limit, out);
      split(limit + 1, last, out);
      return;
    }
  }
  std::string first_bytes, last_bytes;
  append_utf8_char(first, first_bytes);
  append_utf8_char(last, last_bytes);
  for (size_t num_trailing = 1; num_trailing < first_bytes.size(); ++num_trailing) {
    const char32_t mask = (char32_t{1} << (6 * num_trailing)) - 1;
    if ((first & ~mask) == (last & ~mask)) break;
    if ((first & mask) != 0) {
      split(first, first | mask, out);
      split((first | mask) + 1, last, out);
      return;
    }
    if ((last & mask) != mask) {
      split(first, (last & ~mask) - 1, out);
      split(last & ~mask, last, out);
      return;
    }
  }
  ByteRangeSequence sequence;
  for (size_t i = 0; i < first_bytes.size(); ++i) {
    sequence.ranges.push_back({static_cast<uint8_t>(first_bytes[i]), static_cast<uint8_t>(last_bytes[i])});
  }
  out.push_back(std::move(sequence));
}

}  // namespace

CodePointSet::CodePointSet(std::initializer_list<CodePointRange> ranges) : ranges_(ranges) { normalize(); }
CodePointSet::CodePointSet(std::vector<CodePointRange> ranges) : ranges_(std::move(ranges)) { normalize(); }

CodePointSet CodePointSet::all() { return {{0, kFirstSurrogate - 1}, {kLastSurrogate + 1, kMaxCodePoint}}; }

void CodePointSet::add(char32_t first, char32_t last) {
  ranges_.push_back({first, last});
  normalize();
}

void CodePointSet::add(const CodePointSet& other) {
  ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
  normalize();
}

void CodePointSet::normalize() {
  std::ranges::sort(ranges_, {}, &CodePointRange::first);
  std::vector<CodePointRange> merged;
  for (const CodePointRange& range : ranges_) {
    if (range.first > range.last) continue;
    if (!merged.empty() && range.first <= merged.back().last + 1) {
      merged.back().last = std::max(merged.back().last, range.last);
    } else {
      merged.push_back(range);
    }
  }
  ranges_ = std::move(merged);
}

CodePointSet CodePointSet::complement() const {
  CodePointSet gaps;
  char32_t next = 0;
  for (const CodePointRange& range : ranges_) {
    if (range.first > next) gaps.ranges_.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kMaxCodePoint) gaps.ranges_.push_back({next, kMaxCodePoint});
  return gaps.intersect(all());
}

CodePointSet CodePointSet::intersect(const CodePointSet& other) const {
  CodePointSet both;
  for (size_t i = 0, j = 0; i < ranges_.size() && j < other.ranges_.size();) {
    const char32_t first = std::max(ranges_[i].first, other.ranges_[j].first);
    const char32_t last = std::min(ranges_[i].last, other.ranges_[j].last);
    if (first <= last) both.ranges_.push_back({first, last});
    (ranges_[i].last < other.ranges_[j].last ? i : j) += 1;
  }
  return both;
}

bool CodePointSet::contains(char32_t code_point) const {
  return std::ranges::any_of(ranges_, [code_point](const CodePointRange& range) {
    return range.first <= code_point && code_point <= range.last;
  });
}

std::vector<ByteRangeSequence> utf8_sequences(const CodePointSet& set) {
  std::vector<ByteRangeSequence> sequences;
  const CodePointSet characters = set.intersect(CodePointSet::all());
  for (const CodePointRange& range : characters.ranges()) {
    split(range.first, range.last, sequences);
  }
  return sequences;
}

void append_utf8_char(char32_t code_point, std::string& out) {
  const auto put = [&out](char32_t byte) { out += static_cast<char>(byte); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

char32_t next_utf8_char(std::string_view text, size_t& pos) {
  const auto lead = static_cast<uint8_t>(text[pos++]);
  if (lead < 0x80) return lead;
  const size_t num_trailing = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
  if (lead < 0xC2 || lead > 0xF4 || pos + num_trailing > text.size()) return kReplacement;
  char32_t code_point = lead & (0x3Fu >> num_trailing);
  for (size_t i = 0; i < num_trailing; ++i) {
    const auto byte = static_cast<uint8_t>(text[pos + i]);
    if ((byte & 0xC0) != 0x80) return kReplacement;
    code_point = code_point << 6 | (byte & 0x3Fu);
  }
  static constexpr char32_t kFirstOfLength[] = {0x80, 0x800, 0x10000};
  const bool is_surrogate = code_point >= kFirstSurrogate && code_point <= kLastSurrogate;
  if (code_point < kFirstOfLength[num_trailing - 1] || code_point > kMaxCodePoint || is_surrogate) return kReplacement;
  pos += num_trailing;
  return code_point;
}

}  // namespace spate
