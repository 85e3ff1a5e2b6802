#include "text/jinja/template.h"

#include <chrono>
#include <ctime>

#include "text/jinja/parser.h"
#include "text/jinja/scope.h"
#include "text/jinja/unicode.h"

namespace spate::jinja {
namespace {

Status to_status(const Error& error) {
  if (error.verbatim || error.line == 0) return Status(StatusCode::kInvalidArgument, error.what());
  return invalid_argument("line {}: {}", error.line, error.what());
}

bool mentions_in(const Body& body, std::string_view name);

bool mentions_in(const Expr& expr, std::string_view name) {
  if (expr.text == name || expr.attribute == name) return true;
  if (expr.kind == ExprKind::kConst && expr.value.is_string() && expr.value.text() == name) return true;
  for (const ExprPtr& child : expr.children) {
    if (child != nullptr && mentions_in(*child, name)) return true;
  }
  if (expr.call == nullptr) return false;
  for (const ExprPtr& arg : expr.call->positional) {
    if (mentions_in(*arg, name)) return true;
  }
  for (const auto& [key, arg] : expr.call->named) {
    if (mentions_in(*arg, name)) return true;
  }
  return (expr.call->star != nullptr && mentions_in(*expr.call->star, name)) ||
         (expr.call->star_star != nullptr && mentions_in(*expr.call->star_star, name));
}

bool mentions_in(const Stmt& stmt, std::string_view name) {
  for (const ExprPtr* expr : {&stmt.target, &stmt.expr, &stmt.test}) {
    if (*expr != nullptr && mentions_in(**expr, name)) return true;
  }
  for (const ExprPtr& value : stmt.values) {
    if (value != nullptr && mentions_in(*value, name)) return true;
  }
  for (const Branch& branch : stmt.branches) {
    if ((branch.test != nullptr && mentions_in(*branch.test, name)) || mentions_in(branch.body, name)) return true;
  }
  return mentions_in(stmt.body, name) || mentions_in(stmt.else_body, name);
}

bool mentions_in(const Body& body, std::string_view name) {
  for (const StmtPtr& stmt : body) {
    if (mentions_in(*stmt, name)) return true;
  }
  return false;
}

}  // namespace

struct Template::Parsed {
  Body body;
  RootScope root;
};

Result<Template> Template::parse(std::string_view source) {
  if (source.size() > kMaxTemplateBytes) {
    return invalid_argument("the template has {} bytes; at most {} are allowed", source.size(), kMaxTemplateBytes);
  }
  if (!utf8_valid(source)) return invalid_argument("the template is not valid UTF-8");
  Meter meter((Limits()));
  const MeterScope scope(meter);
  try {
    auto parsed = std::make_shared<Parsed>();
    parsed->body = parse_template(source);
    parsed->root = resolve_names(parsed->body);
    return Template(std::move(parsed));
  } catch (const Error& error) {
    return to_status(error);
  }
}

Result<std::string> Template::render(const Value& context, const Clock& clock, const Limits& limits) const {
  Meter meter(limits);
  const MeterScope scope(meter);
  try {
    Runtime runtime(parsed_->body, parsed_->root, context.as_dict(), clock);
    return runtime.render();
  } catch (const Error& error) {
    return to_status(error);
  }
}

bool Template::mentions(std::string_view name) const { return mentions_in(parsed_->body, name); }

const Body& Template::body() const { return parsed_->body; }

std::string system_strftime(const std::string& format) {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count() % 1'000'000;
  std::tm local{};
  localtime_r(&seconds, &local);
  // Python's own additions: %f; and a time without a zone, so %z and %Z give nothing.
  std::string expanded;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 == format.size()) {
      expanded.push_back(format[i]);
      continue;
    }
    const char directive = format[++i];
    if (directive == 'f') {
      expanded += fmt::format("{:06d}", micros);
    } else if (directive != 'z' && directive != 'Z') {
      expanded.push_back('%');
      expanded.push_back(directive);
    }
  }
  if (expanded.empty()) return {};
  if (expanded.size() > 4096) fail("strftime_now: the format has {} bytes; at most 4096 are allowed", expanded.size());
  char buffer[16384];
  const size_t size = std::strftime(buffer, sizeof(buffer), expanded.c_str(), &local);
  return std::string(buffer, size);
}

}  // namespace spate::jinja
