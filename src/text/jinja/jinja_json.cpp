#include "text/jinja/jinja_json.h"

#include "text/jinja/unicode.h"

namespace spate::jinja {
namespace {

Value text_value(const std::string& text) {
  if (!utf8_valid(text)) fail("a text is not valid UTF-8");
  return Value::string(text);
}

}  // namespace

Value from_json(const nlohmann::ordered_json& json) {
  using Type = nlohmann::ordered_json::value_t;
  switch (json.type()) {
    case Type::boolean:
      return Value::boolean(json.get<bool>());
    case Type::number_integer:
      return Value::integer(json.get<int64_t>());
    case Type::number_unsigned: {
      const auto value = json.get<uint64_t>();
      return value <= static_cast<uint64_t>(INT64_MAX) ? Value::integer(static_cast<int64_t>(value))
                                                       : Value::real(static_cast<double>(value));
    }
    case Type::number_float:
      return Value::real(json.get<double>());
    case Type::string:
      return text_value(json.get_ref<const std::string&>());
    case Type::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const auto& item : json) items.push_back(from_json(item));
      return Value::list(std::move(items));
    }
    case Type::object: {
      DictBuilder dict;
      for (const auto& [key, value] : json.items()) dict.set(text_value(key), from_json(value));
      return dict.finish();
    }
    default:
      return Value::none();
  }
}

}  // namespace spate::jinja
