// JsonWriter: appends JSON to a string, with commas in the right places. Every text that leaves the server goes through
// append_json_string, which makes valid JSON of any bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace spate {

// "text" in quotes. Control characters are escaped; bytes that are not UTF-8 become U+FFFD.
void append_json_string(std::string_view text, std::string& out);

// A number JSON can hold: NaN and the infinities, which it cannot, become null. The shortest form that reads back
// equal.
void append_json_number(double value, std::string& out);
void append_json_number(float value, std::string& out);

class JsonWriter {
 public:
  JsonWriter() = default;
  // Writes into the room of `buffer`, whose text is dropped.
  explicit JsonWriter(std::string buffer) : out_(std::move(buffer)) { out_.clear(); }

  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }
  JsonWriter& key(std::string_view name);
  JsonWriter& value(std::string_view text);
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(const std::string& text) { return value(std::string_view(text)); }
  JsonWriter& value(bool flag) { return raw(flag ? "true" : "false"); }
  JsonWriter& value(int number) { return value(static_cast<int64_t>(number)); }
  JsonWriter& value(int64_t number);
  JsonWriter& value(uint64_t number);
  JsonWriter& value(double number);
  JsonWriter& value(float number);
  JsonWriter& null() { return raw("null"); }
  JsonWriter& raw(std::string_view json);  // a complete JSON value

  template <typename T>
  JsonWriter& field(std::string_view name, const T& v) {
    return key(name).value(v);
  }
  JsonWriter& null_field(std::string_view name) { return key(name).null(); }
  JsonWriter& raw_field(std::string_view name, std::string_view json) { return key(name).raw(json); }

  // Text as it is, which is no value: what follows stands without a comma.
  JsonWriter& append(std::string_view text) {
    out_ += text;
    needs_comma_ = false;
    return *this;
  }

  const std::string& text() const { return out_; }
  std::string take() { return std::move(out_); }

 private:
  JsonWriter& open(char bracket);
  JsonWriter& close(char bracket);
  void before_value();

  std::string out_;
  bool needs_comma_ = false;
};

}  // namespace spate
