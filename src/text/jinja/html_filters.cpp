// Filters about HTML and URLs, and markupsafe's escape.
#include <algorithm>
#include <charconv>

#include "text/jinja/builtins.h"
#include "text/jinja/runtime.h"
#include "text/jinja/unicode.h"

namespace spate::jinja {
namespace {

Value filter_escape(Runtime&, const Value& input, const Args& args) {
  const Bound bound("escape", args, {}, 0);
  return escape_html(input);
}
Value filter_forceescape(Runtime&, const Value& input, const Args& args) {
  const Bound bound("forceescape", args, {}, 0);
  return escape_html(Value::string(to_text(input)));
}
Value filter_safe(Runtime&, const Value& input, const Args& args) {
  const Bound bound("safe", args, {}, 0);
  return Value::string(to_text(input), true);
}

Value filter_striptags(Runtime&, const Value& input, const Args& args) {
  const Bound bound("striptags", args, {}, 0);
  const std::string text = to_text(input);
  std::string kept;
  size_t pos = 0;
  for (size_t start = find_text(text, "<"); start != std::string::npos; start = find_text(text, "<", pos)) {
    const bool comment = std::string_view(text).substr(start).starts_with("<!--");
    const size_t end = comment ? find_text(text, "-->", start + 4) : find_text(text, ">", start);
    if (end == std::string::npos) break;
    kept.append(text, pos, start - pos);
    pos = end + (comment ? 3 : 1);
  }
  kept.append(text, pos);
  std::string out;
  for (const std::string_view word : split_spaces(kept, -1)) {
    if (!out.empty()) out.push_back(' ');
    out.append(word);
  }
  return Value::string(unescape_html(out));
}

std::string quote_url(const Value& value, bool for_query) {
  const std::string text = to_text(value);
  std::string out;
  check_string_bytes(text.size() * 3);
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
                       c == '.' || c == '-' || c == '~' || (c == '/' && !for_query);
    if (plain) {
      out.push_back(c);
    } else if (c == ' ' && for_query) {
      out.push_back('+');
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

Value filter_urlencode(Runtime&, const Value& input, const Args& args) {
  const Bound bound("urlencode", args, {}, 0);
  if (input.is_string() || !iterable(input)) return Value::string(quote_url(input, false));
  TextBuilder out;
  bool first = true;
  const auto pair = [&](const Value& key, const Value& value) {
    if (!first) out.append("&");
    first = false;
    out.append(quote_url(key, true) + "=" + quote_url(value, true));
  };
  if (input.is(Kind::kDict)) {
    for (const auto& [key, value] : input.as_dict().entries) pair(key, value);
  } else {
    for (const Value& item : collect(input)) {
      const std::vector<Value> parts = collect(item);
      if (parts.size() != 2) fail("urlencode: pairs are needed, not {} values", parts.size());
      pair(parts[0], parts[1]);
    }
  }
  return Value::string(out.take());
}

Value filter_xmlattr(Runtime&, const Value& input, const Args& args) {
  const Bound bound("xmlattr", args, {"autospace"}, 0);
  if (!input.is(Kind::kDict)) fail("xmlattr: a mapping is needed, not {}", type_name(input));
  TextBuilder out;
  bool first = true;
  for (const auto& [key, value] : input.as_dict().entries) {
    if (value.is_none() || value.is_undefined()) continue;
    if (!key.is_string()) fail("expected string or bytes-like object, got '{}'", type_name(key));
    if (key.text().find_first_of(" \t\n\r\f\v/>=") != std::string::npos)
      fail("Invalid character in attribute name: {}", repr(key));
    if (!first || bound.flag(0, true)) out.append(" ");
    first = false;
    out.append(escape_html(key).text() + "=\"" + escape_html(value).text() + "\"");
  }
  return Value::string(out.take());
}

constexpr Builtin<FilterBody> kHtmlFilters[] = {
    {"escape", filter_escape},           {"e", filter_escape},
    {"forceescape", filter_forceescape}, {"safe", filter_safe},
    {"striptags", filter_striptags},     {"urlencode", filter_urlencode},
    {"xmlattr", filter_xmlattr},
};

}  // namespace

Value escape_html(const Value& value) {
  if (value.is_markup()) return value;
  TextBuilder out;
  const std::string text = to_text(value);
  for (size_t pos = 0; pos < text.size();) {
    const size_t end = std::min(text.find_first_of("&<>'\"", pos), text.size());
    out.append(std::string_view(text).substr(pos, end - pos));
    pos = end;
    if (pos == text.size()) break;
    switch (text[pos++]) {
      case '&':
        out.append("&amp;");
        break;
      case '<':
        out.append("&lt;");
        break;
      case '>':
        out.append("&gt;");
        break;
      case '\'':
        out.append("&#39;");
        break;
      default:
        out.append("&#34;");
        break;
    }
  }
  return Value::string(out.take(), true);
}

std::string unescape_html(std::string_view text) {
  static constexpr std::pair<std::string_view, std::string_view> kEntities[] = {
      {"amp", "&"},       {"lt", "<"},          {"gt", ">"},         {"quot", "\""},
      {"apos", "'"},      {"nbsp", "\u00a0"},   {"raquo", "\u00bb"}, {"laquo", "\u00ab"},
      {"copy", "\u00a9"}, {"hellip", "\u2026"}, {"mdash", "\u2014"}, {"ndash", "\u2013"},
  };
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const size_t amp = std::min(text.find('&', pos), text.size());
    out.append(text.substr(pos, amp - pos));
    pos = amp;
    if (pos == text.size()) break;
    const size_t end = text.substr(0, std::min(text.size(), pos + 12)).find(';', pos);
    std::string replacement;
    if (end != std::string_view::npos) {
      const std::string_view name = text.substr(pos + 1, end - pos - 1);
      if (name.starts_with("#")) {
        const bool hex = name.size() > 1 && (name[1] == 'x' || name[1] == 'X');
        uint32_t code = 0;
        const std::string_view digits = name.substr(hex ? 2 : 1);
        const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, hex ? 16 : 10);
        if (!digits.empty() && error == std::errc() && stop == digits.data() + digits.size() && code > 0 &&
            code <= 0x10ffff && (code < 0xd800 || code >= 0xe000)) {
          utf8_append(replacement, code);
        }
      } else {
        for (const auto& [entity, character] : kEntities) {
          if (entity == name) replacement = character;
        }
      }
    }
    if (replacement.empty()) {
      out.push_back(text[pos++]);
    } else {
      out += replacement;
      pos = end + 1;
    }
  }
  return out;
}

FilterBody find_html_filter(std::string_view name) { return find_builtin(kHtmlFilters, name); }

}  // namespace spate::jinja
