// ApiError: what a client is told when its request cannot be served. One envelope for every status:
//   {"error":{"message":...,"type":...,"param":...,"code":...}}
// Clients of OpenAI's API show nothing at all for any other shape.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "base/status.h"

namespace spate {

struct ApiError {
  int http_status = 400;
  std::string type = "invalid_request_error";
  std::string code;   // empty = null
  std::string param;  // the field; empty = null
  std::string message;
  int retry_after_seconds = 0;  // 0 = no Retry-After header
};

ApiError bad_request(std::string param, std::string message, std::string code = "invalid_value");
ApiError not_supported(std::string param, std::string message);            // 400: known, refused rather than ignored
ApiError model_not_found(std::string_view model, std::span<const std::string> names);  // 404; names: those there are
ApiError unavailable_error(std::string message, int retry_after_seconds);  // 503
ApiError http_error(int http_status, std::string message);                 // type and code follow from the status
ApiError api_error_of(const Status& status, std::string param = {});

// The same error by the name that the client gave the field: `ours` becomes `theirs` in param and message. An error of
// another field stays as it is.
ApiError with_field_name(ApiError error, std::string_view ours, std::string_view theirs);

std::string error_json(const ApiError& error);  // the envelope

// A T or the ApiError that says why there is none.
template <typename T>
class [[nodiscard]] ApiResult {
 public:
  ApiResult(T value) : state_(std::in_place_index<0>, std::move(value)) {}         // NOLINT: implicit on purpose
  ApiResult(ApiError error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT: implicit on purpose
  bool ok() const { return state_.index() == 0; }
  T& operator*() { return std::get<0>(state_); }
  const T& operator*() const { return std::get<0>(state_); }
  T* operator->() { return &std::get<0>(state_); }
  const ApiError& error() const { return std::get<1>(state_); }

 private:
  std::variant<T, ApiError> state_;
};

}  // namespace spate
