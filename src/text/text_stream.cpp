#include "text/text_stream.h"

#include <algorithm>
#include <utility>

namespace spate {
namespace {

std::vector<uint32_t> borders_of(const std::string& text) {
  std::vector<uint32_t> borders(text.size() + 1, 0);
  uint32_t border = 0;
  for (size_t i = 1; i < text.size(); ++i) {
    while (border > 0 && text[i] != text[border]) border = borders[border];
    if (text[i] == text[border]) ++border;
    borders[i + 1] = border;
  }
  return borders;
}

}  // namespace

StopMatcher::StopMatcher(std::vector<std::string> stops, bool include_stop)
    : stops_(std::move(stops)), states_(stops_.size(), 0), include_stop_(include_stop) {
  for (const std::string& stop : stops_) borders_.push_back(borders_of(stop));
}

bool StopMatcher::append(std::string_view text, std::string& out, bool may_stop) {
  if (is_matched()) return true;
  if (stops_.empty()) {
    out += text;
    return false;
  }
  for (const char c : text) {
    held_ += c;
    for (size_t i = 0; i < stops_.size(); ++i) {
      const std::string& stop = stops_[i];
      uint32_t& state = states_[i];
      while (state > 0 && c != stop[state]) state = borders_[i][state];
      if (c == stop[state]) ++state;
      const bool is_longer = matched_ < 0 || stop.size() > matched().size();
      if (state == stop.size()) {
        if (may_stop && is_longer) matched_ = static_cast<int>(i);
        state = borders_[i][state];
      }
    }
    if (is_matched()) {
      if (!include_stop_) held_.resize(held_.size() - matched().size());
      out += std::exchange(held_, {});
      return true;
    }
  }
  const size_t num_held = *std::max_element(states_.begin(), states_.end());
  out.append(held_, 0, held_.size() - num_held);
  held_.erase(0, held_.size() - num_held);
  return false;
}

void StopMatcher::finish(std::string& out) { out += std::exchange(held_, {}); }

TextStream::TextStream(const Tokenizer& tokenizer, TextStreamOptions options, std::span<const int32_t> prompt_ids)
    : decoder_(tokenizer, options.decode, prompt_ids),
      stops_(std::move(options.stop), options.include_stop_str_in_output),
      min_tokens_(options.min_tokens) {}

bool TextStream::append(int32_t token_id, std::string& out) {
  ++num_tokens_;
  return !stops_.append(decoder_.append(token_id), out, num_tokens_ > min_tokens_);
}

void TextStream::finish(std::string& out) {
  if (stops_.is_matched()) return;
  const std::string rest = decoder_.finish();
  if (!stops_.append(rest, out, num_tokens_ > min_tokens_)) stops_.finish(out);
}

}  // namespace spate
