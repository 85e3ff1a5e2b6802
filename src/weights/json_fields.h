// Typed reading of the fields of a small JSON object (config.json, generation_config.json), with every problem
// collected. Included by .cpp files only: it brings simdjson.
//
// A key that is absent or null leaves the value as it is; is_null() tells the two apart. A wrong type or a value out of
// range becomes a problem that names key, value and what is allowed.
#pragma once

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace spate {

class JsonFields {
 public:
  JsonFields(simdjson::dom::object object, std::string prefix, std::vector<std::string>& problems)
      : object_(object), prefix_(std::move(prefix)), problems_(problems) {}

  bool has(std::string_view key) const { return element(key).has_value(); }
  bool is_null(std::string_view key) const {
    simdjson::dom::element found;
    return object_.at_key(key).get(found) == simdjson::SUCCESS && found.is_null();
  }
  // JSON readers differ in which of two values they take.
  void refuse_repeated_keys() {
    std::vector<std::string> names = keys();
    std::sort(names.begin(), names.end());
    const auto twice = std::adjacent_find(names.begin(), names.end());
    if (twice != names.end()) problem(fmt::format("{}{} is there twice", prefix_, *twice));
  }
  bool empty() const { return object_.size() == 0; }
  const std::string& prefix() const { return prefix_; }
  std::vector<std::string> keys() const {
    std::vector<std::string> keys;
    for (const auto field : object_) keys.emplace_back(field.key);
    return keys;
  }

  void read(std::string_view key, int64_t& value, int64_t min, int64_t max) {
    const auto found = element(key);
    if (!found) return;
    int64_t number = 0;
    if (found->get(number) != simdjson::SUCCESS || number < min || number > max) {
      return problem(key, *found, fmt::format("a whole number in [{}, {}]", min, max));
    }
    value = number;
  }
  void read(std::string_view key, double& value, double min, double max) {
    const auto found = element(key);
    if (!found) return;
    double number = 0;
    if (found->get(number) != simdjson::SUCCESS || !(number >= min && number <= max)) {
      return problem(key, *found, fmt::format("a number in [{}, {}]", min, max));
    }
    value = number;
  }
  void read(std::string_view key, bool& value) {
    const auto found = element(key);
    if (!found) return;
    if (found->get(value) != simdjson::SUCCESS) problem(key, *found, "true or false");
  }
  void read(std::string_view key, std::string& value) {
    const auto found = element(key);
    if (!found) return;
    std::string_view text;
    if (found->get(text) != simdjson::SUCCESS) return problem(key, *found, "a string");
    value = text;
  }
  // An id or a list of ids.
  void read_ids(std::string_view key, std::vector<int32_t>& ids) {
    const auto found = element(key);
    if (!found) return;
    std::vector<int32_t> values;
    const auto add = [&](simdjson::dom::element one) {
      int64_t id = 0;
      if (one.get(id) != simdjson::SUCCESS || id < 0 || id > INT32_MAX) return false;
      values.push_back(static_cast<int32_t>(id));
      return true;
    };
    bool good = true;
    simdjson::dom::array array;
    if (found->get(array) == simdjson::SUCCESS) {
      for (const simdjson::dom::element one : array) good = good && add(one);
    } else {
      good = add(*found);
    }
    if (!good) return problem(key, *found, "a token id or a list of token ids");
    ids = std::move(values);
  }
  void read_sizes(std::string_view key, std::vector<int64_t>& sizes) {
    const auto found = element(key);
    if (!found) return;
    simdjson::dom::array array;
    bool good = found->get(array) == simdjson::SUCCESS;
    std::vector<int64_t> values;
    if (good) {
      for (const simdjson::dom::element one : array) {
        int64_t size = 0;
        good = good && one.get(size) == simdjson::SUCCESS && size > 0 && size <= INT32_MAX;
        values.push_back(size);
      }
    }
    if (!good) return problem(key, *found, "a list of sizes");
    sizes = std::move(values);
  }
  void read_strings(std::string_view key, std::vector<std::string>& strings) {
    const auto found = element(key);
    if (!found) return;
    std::vector<std::string> values;
    simdjson::dom::array array;
    bool good = found->get(array) == simdjson::SUCCESS;
    if (good) {
      for (const simdjson::dom::element one : array) {
        std::string_view text;
        good = good && one.get(text) == simdjson::SUCCESS;
        values.emplace_back(text);
      }
    }
    if (!good) return problem(key, *found, "a list of strings");
    strings = std::move(values);
  }
  std::optional<JsonFields> object(std::string_view key) {
    const auto found = element(key);
    if (!found) return std::nullopt;
    simdjson::dom::object inner;
    if (found->get(inner) != simdjson::SUCCESS) {
      problem(key, *found, "an object");
      return std::nullopt;
    }
    return JsonFields(inner, fmt::format("{}{}.", prefix_, key), problems_);
  }
  void problem(std::string text) { problems_.push_back(std::move(text)); }

 private:
  std::optional<simdjson::dom::element> element(std::string_view key) const {
    simdjson::dom::element found;
    if (object_.at_key(key).get(found) != simdjson::SUCCESS || found.is_null()) return std::nullopt;
    return found;
  }
  void problem(std::string_view key, simdjson::dom::element found, const std::string& needed) {
    std::string value = simdjson::minify(found);
    if (value.size() > 60) value = value.substr(0, 57) + "...";
    problems_.push_back(fmt::format("{}{} is {}, needs {}", prefix_, key, value, needed));
  }

  simdjson::dom::object object_;
  std::string prefix_;  // "rope_scaling."
  std::vector<std::string>& problems_;
};

// "a; b; c", as one invalid argument, or ok when there are none.
inline Status problems_status(const std::vector<std::string>& problems) {
  return problems.empty() ? ok_status() : invalid_argument("{}", fmt::join(problems, "; "));
}

}  // namespace spate
