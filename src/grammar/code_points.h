// CodePointSet: a set of Unicode scalar values as sorted ranges, and its UTF-8 form as sequences of byte ranges.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace spate {

constexpr char32_t kMaxCodePoint = 0x10FFFF;

struct CodePointRange {
  char32_t first = 0, last = 0;  // both included
  auto operator<=>(const CodePointRange&) const = default;
};

class CodePointSet {
 public:
  CodePointSet() = default;
  CodePointSet(std::initializer_list<CodePointRange> ranges);
  explicit CodePointSet(std::vector<CodePointRange> ranges);

  static CodePointSet all();  // without surrogates, which are no characters
  void add(char32_t first, char32_t last);
  void add(const CodePointSet& other);
  CodePointSet complement() const;  // within all()
  CodePointSet intersect(const CodePointSet& other) const;
  CodePointSet without(const CodePointSet& other) const { return intersect(other.complement()); }
  bool contains(char32_t code_point) const;
  bool empty() const { return ranges_.empty(); }
  const std::vector<CodePointRange>& ranges() const { return ranges_; }  // sorted, disjoint, not adjacent

 private:
  void normalize();
  std::vector<CodePointRange> ranges_;
};

// 1 to 4 byte ranges, one behind the other.
struct ByteRangeSequence {
  struct Range {
    uint8_t first = 0, last = 0;
  };
  std::vector<Range> ranges;
};
// The UTF-8 texts of the set's characters, without overlap.
std::vector<ByteRangeSequence> utf8_sequences(const CodePointSet& set);

void append_utf8_char(char32_t code_point, std::string& out);
// The character at `pos`, which moves behind it; U+FFFD for bytes that are no UTF-8.
char32_t next_utf8_char(std::string_view text, size_t& pos);

}  // namespace spate
