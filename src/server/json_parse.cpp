#include "server/json_parse.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "server/json_writer.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;

// Builds the value from the parser's events. nlohmann's own builder looks every key up among the keys before it, which
// takes quadratic time on an object of a million keys; this one appends.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  std::optional<ApiError> refusal;  // other than malformed text

  bool null() override { return add(Json()); }
  bool boolean(bool flag) override { return add(Json(flag)); }
  bool number_integer(number_integer_t number) override { return add(Json(number)); }
  bool number_unsigned(number_unsigned_t number) override { return add(Json(number)); }
  bool number_float(number_float_t number, const string_t&) override { return add(Json(number)); }
  bool string(string_t& text) override { return allow(kPieceBytes + text_bytes(text)) && add(Json(std::move(text))); }
  bool binary(binary_t&) override { return false; }  // not in JSON text
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (!allow(sizeof(string_t) + text_bytes(name))) return false;
    keys_.back() = std::move(name);
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& e) override {
    error = e.what();
    return false;
  }

  Json root;
  std::string error;

 private:
  // What malloc takes for a piece that a value points to, its own header included.
  static constexpr size_t kPieceBytes = 48;
  // Of the characters, beyond those that lie in the string itself.
  static size_t text_bytes(const string_t& text) { return text.size() < 16 ? 0 : text.size() + 16; }

  bool allow(size_t num_bytes) {
    num_bytes_ += num_bytes;
    if (num_bytes_ <= kMaxJsonValueBytes) return true;
    refusal = http_error(
        413, fmt::format("The values in the request's body take more than {} bytes of memory.", kMaxJsonValueBytes));
    return false;
  }
  bool add(Json value) {
    if (!allow(sizeof(Json))) return false;
    place(std::move(value));
    return true;
  }
  Json* place(Json value) {
    if (stack_.empty()) {
      root = std::move(value);
      return &root;
    }
    Json& parent = *stack_.back();
    if (parent.is_array()) {
      auto& items = *parent.get_ptr<Json::array_t*>();
      items.push_back(std::move(value));
      return &items.back();
    }
    auto& members = *parent.get_ptr<Json::object_t*>();
    members.emplace_back(std::move(keys_.back()), std::move(value));
    return &members.back().second;
  }
  bool open(Json value) {
    if (static_cast<int>(stack_.size()) >= kMaxJsonDepth) {
      error = fmt::format("it is nested deeper than {} levels", kMaxJsonDepth);
      return false;
    }
    if (!allow(sizeof(Json) + kPieceBytes)) return false;
    stack_.push_back(place(std::move(value)));
    keys_.emplace_back();
    return true;
  }
  // Of a key that comes twice the last counts, as in the JSON readers of most languages.
  static void drop_repeated_keys(Json::object_t& members) {
    auto* const items = members.data();
    std::vector<uint32_t> order(members.size());
    std::iota(order.begin(), order.end(), 0u);
    std::ranges::sort(order, [&](uint32_t a, uint32_t b) {
      const int sign = items[a].first.compare(items[b].first);
      return sign != 0 ? sign < 0 : a < b;
    });
    std::vector<bool> is_repeated(members.size());
    bool has_repeated = false;
    for (size_t i = 0; i + 1 < order.size(); ++i) {
      if (items[order[i]].first != items[order[i + 1]].first) continue;
      is_repeated[order[i]] = has_repeated = true;
    }
    if (!has_repeated) return;
    Json::object_t kept;
    for (size_t i = 0; i < members.size(); ++i) {
      if (!is_repeated[i]) kept.emplace_back(items[i].first, std::move(items[i].second));
    }
    members.swap(kept);
  }
  bool close() {
    if (auto* members = stack_.back()->get_ptr<Json::object_t*>(); members != nullptr && members->size() > 1) {
      drop_repeated_keys(*members);
    }
    stack_.pop_back();
    keys_.pop_back();
    return true;
  }

  std::vector<Json*> stack_;  // the open containers; a container does not grow while a child of it is open
  std::vector<std::string> keys_;
  size_t num_bytes_ = 0;  // of the values so far
};

// Keeps the text of the outermost object's last key "model", as Builder does.
class ModelFinder final : public nlohmann::json_sax<Json> {
 public:
  std::string model;

  bool null() override { return pass(); }
  bool boolean(bool) override { return pass(); }
  bool number_integer(number_integer_t) override { return pass(); }
  bool number_unsigned(number_unsigned_t) override { return pass(); }
  bool number_float(number_float_t, const string_t&) override { return pass(); }
  bool string(string_t& text) override {
    if (is_next_) model = std::move(text);
    return pass();
  }
  bool binary(binary_t&) override { return false; }  // not in JSON text
  bool start_object(std::size_t) override { return open(); }
  bool start_array(std::size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    is_next_ = depth_ == 1 && name == "model";
    if (is_next_) model.clear();  // also where the value is no text
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  bool pass() {
    is_next_ = false;
    return true;
  }
  bool open() {
    is_next_ = false;
    return ++depth_ <= kMaxJsonDepth;
  }
  bool close() {
    --depth_;
    return true;
  }
  bool is_next_ = false;
  int depth_ = 0;
};

// "[json.exception.parse_error.101] parse error at line 1, column 5: ..." without the library's name.
std::string readable(const std::string& error) {
  const size_t close = error.find("] ");
  std::string text = close == std::string::npos ? error : error.substr(close + 2);
  if (text.starts_with("parse error ")) text.erase(0, 12);
  // The text quotes what was read last, which may be the whole of a long string and any bytes.
  if (text.size() > 300) text = text.substr(0, 300) + "...";
  std::string escaped;
  append_json_string(text, escaped);
  return Json::parse(escaped).get<std::string>();
}

}  // namespace

ApiResult<std::shared_ptr<const Json>> parse_json(std::string_view text, std::string_view problem) {
  // The parser takes this byte for the end, whatever stands behind it.
  if (const size_t place = text.find('\0'); place != std::string_view::npos) {
    return bad_request("", fmt::format("{}byte {} is zero", problem, place), "json_parse_error");
  }
  Builder builder;
  if (!Json::sax_parse(text, &builder)) {
    if (builder.refusal) return *builder.refusal;
    return bad_request("", std::string(problem) + readable(builder.error), "json_parse_error");
  }
  return std::shared_ptr<const Json>(std::make_shared<Json>(std::move(builder.root)));
}

std::string find_model_field(std::string_view text) {
  ModelFinder finder;
  Json::sax_parse(text, &finder);  // false where the text is not JSON; whoever parses it says so
  return std::move(finder.model);
}

}  // namespace spate
