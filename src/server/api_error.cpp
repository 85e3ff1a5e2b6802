#include "server/api_error.h"

#include <fmt/ranges.h>

#include <cctype>

#include "server/json_writer.h"

namespace spate {
namespace {

constexpr size_t kMaxNameBytes = 200;  // of what a client named, in a message

}  // namespace

ApiError bad_request(std::string param, std::string message, std::string code) {
  return {.http_status = 400, .code = std::move(code), .param = std::move(param), .message = std::move(message)};
}

ApiError not_supported(std::string param, std::string message) {
  return bad_request(std::move(param), std::move(message), "unsupported_parameter");
}

ApiError model_not_found(std::string_view model, std::span<const std::string> names) {
  return {.http_status = 404,
          .type = "not_found_error",
          .code = "model_not_found",
          .param = "model",
          .message = fmt::format("The model `{}` does not exist. There {} `{}`.", model.substr(0, kMaxNameBytes),
                                 names.size() == 1 ? "is" : "are", fmt::join(names, "`, `"))};
}

ApiError unavailable_error(std::string message, int retry_after_seconds) {
  return {.http_status = 503,
          .type = "unavailable_error",
          .code = "unavailable",
          .message = std::move(message),
          .retry_after_seconds = retry_after_seconds};
}

ApiError http_error(int http_status, std::string message) {
  ApiError error{.http_status = http_status, .message = std::move(message)};
  switch (http_status) {
    case 401:
      error.type = "authentication_error";
      error.code = "invalid_api_key";
      break;
    case 403:
      error.type = "permission_error";
      error.code = "forbidden";
      break;
    case 404:
      error.type = "not_found_error";
      error.code = "not_found";
      break;
    case 405:
      error.code = "method_not_allowed";
      break;
    case 409:
      error.code = "conflict";
      break;
    case 408:
      error.code = "request_timeout";
      break;
    case 413:
      error.code = "request_too_large";
      break;
    case 415:
      error.code = "unsupported_media_type";
      break;
    case 417:
      error.code = "expectation_failed";
      break;
    case 429:
      error.type = "rate_limit_error";
      error.code = "queue_full";
      error.retry_after_seconds = 1;
      break;
    case 431:
      error.code = "request_header_too_large";
      break;
    case 500:
      error.type = "server_error";
      error.code = "internal_error";
      break;
    case 501:
      error.type = "not_implemented_error";
      error.code = "not_implemented";
      break;
    case 503:
      error.type = "unavailable_error";
      error.code = "unavailable";
      error.retry_after_seconds = 1;
      break;
    default:
      error.code = "invalid_request";
  }
  return error;
}

ApiError api_error_of(const Status& status, std::string param) {
  int http_status = 500;
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kOutOfRange:
    case StatusCode::kDataLoss:
      http_status = 400;
      break;
    case StatusCode::kNotFound:
      http_status = 404;
      break;
    case StatusCode::kResourceExhausted:
      http_status = 429;
      break;
    case StatusCode::kUnavailable:
    case StatusCode::kCancelled:
      http_status = 503;
      break;
    case StatusCode::kUnimplemented:
      http_status = 501;
      break;
    case StatusCode::kOk:
    case StatusCode::kInternal:
      break;
  }
  ApiError error = http_error(http_status, status.message());
  if (http_status == 400) error.code = "invalid_value";
  error.param = std::move(param);
  return error;
}

ApiError with_field_name(ApiError error, std::string_view ours, std::string_view theirs) {
  const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  const auto ends_at = [&](const std::string& text, size_t end) { return end == text.size() || !is_word(text[end]); };
  if (!error.param.starts_with(ours) || !ends_at(error.param, ours.size())) return error;
  error.param.replace(0, ours.size(), theirs);
  std::string& text = error.message;
  for (size_t at = text.find(ours); at != std::string::npos; at = text.find(ours, at)) {
    const bool is_name = (at == 0 || !is_word(text[at - 1])) && ends_at(text, at + ours.size());
    if (is_name) text.replace(at, ours.size(), theirs);
    at += is_name ? theirs.size() : ours.size();
  }
  return error;
}

std::string error_json(const ApiError& error) {
  JsonWriter json;
  json.begin_object().key("error").begin_object().field("message", error.message).field("type", error.type);
  if (error.param.empty()) {
    json.null_field("param");
  } else {
    json.field("param", error.param);
  }
  if (error.code.empty()) {
    json.null_field("code");
  } else {
    json.field("code", error.code);
  }
  return json.end_object().end_object().take();
}

}  // namespace spate
