// Status and Result<T>: how a function says that it could not do what was asked.
//
// A Status is for problems of the caller or the operator (a bad request, a bad file): it travels up as a
// value and ends in an HTTP error or a start-up message. A bug of ours is a CHECK (base/check.h).
// Message formula (style: where, what was needed, what was found with values, what to do).
#pragma once

#include <fmt/core.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace spate {

enum class StatusCode {
  kOk,
  kInvalidArgument,    // the caller's value is wrong: HTTP 400
  kNotFound,           // model, path or file does not exist: 404
  kOutOfRange,         // beyond a limit of the model (context length): 400
  kResourceExhausted,  // memory, queue: 429 or refusal to start
  kUnavailable,        // loading or draining: 503
  kUnimplemented,      // known, not built: 501
  kCancelled,          // the caller went away
  kDataLoss,           // a truncated, corrupt or hostile file
  kInternal,           // ours: 500
};

std::string_view status_code_name(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // The same problem with the place in front: "tokenizer.json: <message>".
  Status with_context(std::string_view where) const;
  std::string to_string() const;  // "invalid argument: <message>"

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status ok_status() { return Status(); }

#define SPATE_STATUS_MAKER(name, code)                                       \
  template <typename... Args>                                                \
  Status name(fmt::format_string<Args...> format, Args&&... args) {          \
    return Status(code, fmt::format(format, std::forward<Args>(args)...));   \
  }
SPATE_STATUS_MAKER(invalid_argument, StatusCode::kInvalidArgument)
SPATE_STATUS_MAKER(not_found, StatusCode::kNotFound)
SPATE_STATUS_MAKER(out_of_range, StatusCode::kOutOfRange)
SPATE_STATUS_MAKER(resource_exhausted, StatusCode::kResourceExhausted)
SPATE_STATUS_MAKER(unavailable, StatusCode::kUnavailable)
SPATE_STATUS_MAKER(unimplemented, StatusCode::kUnimplemented)
SPATE_STATUS_MAKER(cancelled, StatusCode::kCancelled)
SPATE_STATUS_MAKER(data_loss, StatusCode::kDataLoss)
SPATE_STATUS_MAKER(internal_error, StatusCode::kInternal)
#undef SPATE_STATUS_MAKER

// A T or the Status that says why there is none. value() on an error stops the program.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}          // NOLINT: implicit on purpose
  Result(Status status) : state_(std::in_place_index<1>, std::move(status)) {}  // NOLINT: implicit on purpose

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  Status status() const { return ok() ? Status() : std::get<1>(state_); }

  T& value() & { return require(), std::get<0>(state_); }
  const T& value() const& { return require(), std::get<0>(state_); }
  T&& value() && { return require(), std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  void require() const {
    if (!ok()) fail_no_value(std::get<1>(state_));
  }
  [[noreturn]] static void fail_no_value(const Status& status);

  std::variant<T, Status> state_;
};

[[noreturn]] void abort_no_value(const Status& status);

template <typename T>
void Result<T>::fail_no_value(const Status& status) {
  abort_no_value(status);
}

#define SPATE_CONCAT_INNER(a, b) a##b
#define SPATE_CONCAT(a, b) SPATE_CONCAT_INNER(a, b)

// RETURN_IF_ERROR(expression giving Status);
#define RETURN_IF_ERROR(expr)                                  \
  do {                                                         \
    if (::spate::Status status_ = (expr); !status_.ok()) return status_; \
  } while (false)

// ASSIGN_OR_RETURN(const int x, expression giving Result<int>);
#define ASSIGN_OR_RETURN(lhs, expr) ASSIGN_OR_RETURN_INNER(SPATE_CONCAT(result_, __LINE__), lhs, expr)
#define ASSIGN_OR_RETURN_INNER(result, lhs, expr) \
  auto result = (expr);                           \
  if (!result.ok()) return result.status();       \
  lhs = std::move(result).value()

}  // namespace spate
