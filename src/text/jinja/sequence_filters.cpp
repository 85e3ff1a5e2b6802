// Filters over sequences and mappings. As in jinja2, map, select and their kin give a generator: it works when it is
// read, once, and its errors come then.
#include <algorithm>

#include "text/jinja/builtins.h"
#include "text/jinja/runtime.h"
#include "text/jinja/unicode.h"

namespace spate::jinja {
namespace {

bool all_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// "a.b.0": the attribute path of map, sort, sum ...
class AttributePath {
 public:
  AttributePath() = default;
  explicit AttributePath(const Value& attribute) {
    if (attribute.is_missing() || attribute.is_none()) return;
    if (!attribute.is_string()) {
      parts_.push_back(attribute);
      return;
    }
    const std::string& text = attribute.text();
    size_t begin = 0;
    while (true) {
      const size_t dot = text.find('.', begin);
      const std::string part = text.substr(begin, dot == std::string::npos ? dot : dot - begin);
      int64_t index = 0;
      if (all_digits(part)) {
        parse_int(part, 10, &index);
        parts_.push_back(Value::integer(index));
      } else {
        parts_.push_back(Value::string(part));
      }
      if (dot == std::string::npos) break;
      begin = dot + 1;
    }
  }

  Value get(Value item, const Value& fallback = Value()) const {
    for (const Value& part : parts_) {
      item = get_item(item, part);
      if (item.is_undefined() && !fallback.is_missing() && !fallback.is_none()) item = fallback;
    }
    return item;
  }

 private:
  std::vector<Value> parts_;
};

Value ignore_case(const Value& value) {
  return value.is_string() ? Value::string(to_lower(value.text()), value.is_markup()) : value;
}

// Sorts by keys with Python's `<`; stable, also in reverse.
std::vector<Value> sorted(std::vector<Value> items, const std::vector<Value>& keys, bool reverse) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    charge_steps(1);
    return reverse ? less(keys[b], keys[a]) : less(keys[a], keys[b]);
  });
  std::vector<Value> out;
  out.reserve(items.size());
  for (const size_t i : order) out.push_back(items[i]);
  return out;
}

Value filter_length(Runtime&, const Value& input, const Args& args) {
  const Bound bound("length", args, {}, 0);
  return Value::integer(length(input));
}

Value filter_default(Runtime&, const Value& input, const Args& args) {
  const Bound bound("default", args, {"default_value", "boolean"}, 0);
  if (input.is_undefined() || (bound.flag(1, false) && !truthy(input)))
    return bound.has(0) ? bound[0] : Value::string("");
  return input;
}

Value filter_first(Runtime&, const Value& input, const Args& args) {
  const Bound bound("first", args, {}, 0);
  Value item;
  return iterate(input)->next(&item) ? item : Value::undefined("No first item, sequence was empty.");
}

// reversed(): not for generators.
std::vector<Value> reversed(const Value& input) {
  std::vector<Value> items = collect(input);
  std::reverse(items.begin(), items.end());
  return items;
}

Value filter_last(Runtime&, const Value& input, const Args& args) {
  const Bound bound("last", args, {}, 0);
  if (!has_length(input) || input.is(Kind::kLoop)) fail("'{}' object is not reversible", type_name(input));
  if (length(input) == 0) return Value::undefined("No last item, sequence was empty.");
  if (input.is_sequence()) return input.items().back();
  if (input.is_string()) return get_item(input, Value::integer(-1));
  return collect(input).back();
}

Value iterator_over(std::vector<Value> items) {
  const Value list = Value::list(std::move(items));
  return Value(Kind::kIterator, iterate(list));
}

Value filter_reverse(Runtime&, const Value& input, const Args& args) {
  const Bound bound("reverse", args, {}, 0);
  if (input.is_string()) return slice(input, Value::none(), Value::none(), Value::integer(-1));
  if (!iterable(input)) fail("argument must be iterable");
  if (input.is(Kind::kIterator)) return Value::list(reversed(input));
  return iterator_over(reversed(input));
}

Value filter_list(Runtime&, const Value& input, const Args& args) {
  const Bound bound("list", args, {}, 0);
  return Value::list(collect(input));
}

Value filter_items(Runtime&, const Value& input, const Args& args) {
  const Bound bound("items", args, {}, 0);
  if (input.is_undefined()) return Value(Kind::kIterator, iterate(input));
  // In Python the complaint comes when the generator is read.
  if (!input.is(Kind::kDict)) {
    return make_iterator([](Value*) -> bool { fail("Can only get item pairs from a mapping."); }, 0);
  }
  return make_iterator(
      [input, i = size_t{0}](Value* item) mutable {
        if (i >= input.as_dict().entries.size()) return false;
        const auto& [key, value] = input.as_dict().entries[i++];
        *item = Value::tuple({key, value});
        return true;
      },
      input.depth());
}

Value filter_join(Runtime&, const Value& input, const Args& args) {
  const Bound bound("join", args, {"d", "attribute"}, 0);
  const std::string separator = bound.has(0) ? to_text(bound[0]) : std::string();
  const AttributePath path(bound[1]);
  const std::shared_ptr<IteratorObject> items = iterate(input);
  TextBuilder out;
  Value item;
  for (bool first = true; items->next(&item); first = false) {
    charge_steps(1);
    if (!first) out.append(separator);
    append_text(out, path.get(item));
  }
  return Value::string(out.take());
}

Value filter_sum(Runtime&, const Value& input, const Args& args) {
  const Bound bound("sum", args, {"attribute", "start"}, 0);
  const AttributePath path(bound[0]);
  Value total = bound.has(1) ? bound[1] : Value::integer(0);
  if (total.is_string()) fail("sum() can't sum strings [use ''.join(seq) instead]");
  for (const Value& item : collect(input)) total = binary('+', total, path.get(item));
  return total;
}

Value filter_sort(Runtime&, const Value& input, const Args& args) {
  const Bound bound("sort", args, {"reverse", "case_sensitive", "attribute"}, 0);
  const bool case_sensitive = bound.flag(1, false);
  std::vector<AttributePath> paths;
  if (bound[2].is_string()) {
    const std::string& text = bound[2].text();
    for (size_t begin = 0; begin <= text.size();) {
      const size_t comma = std::min(text.find(',', begin), text.size());
      paths.emplace_back(Value::string(text.substr(begin, comma - begin)));
      begin = comma + 1;
    }
  } else {
    paths.emplace_back(bound[2]);
  }
  std::vector<Value> items = collect(input);
  std::vector<Value> keys;
  for (const Value& item : items) {
    std::vector<Value> key;
    for (const AttributePath& path : paths)
      key.push_back(case_sensitive ? path.get(item) : ignore_case(path.get(item)));
    keys.push_back(Value::list(std::move(key)));
  }
  return Value::list(sorted(std::move(items), keys, bound.flag(0, false)));
}

Value filter_dictsort(Runtime&, const Value& input, const Args& args) {
  const Bound bound("dictsort", args, {"case_sensitive", "by", "reverse"}, 0);
  const std::string by = bound.has(1) ? to_text(bound[1]) : "key";
  if (by != "key" && by != "value") fail("You can only sort by either \"key\" or \"value\"");
  if (input.is_undefined()) fail("{}", input.undefined_message());
  if (!input.is(Kind::kDict)) fail("'{}' object has no attribute 'items'", type_name(input));
  std::vector<Value> items, keys;
  for (const auto& [key, value] : input.as_dict().entries) {
    items.push_back(Value::tuple({key, value}));
    const Value& chosen = by == "key" ? key : value;
    keys.push_back(bound.flag(0, false) ? chosen : ignore_case(chosen));
  }
  return Value::list(sorted(std::move(items), keys, bound.flag(2, false)));
}

template <bool largest>
Value filter_extreme(Runtime&, const Value& input, const Args& args) {
  const Bound bound(largest ? "max" : "min", args, {"case_sensitive", "attribute"}, 0);
  const AttributePath path(bound[1]);
  const bool case_sensitive = bound.flag(0, false);
  Value best, best_key;
  for (const Value& item : collect(input)) {
    const Value key = case_sensitive ? path.get(item) : ignore_case(path.get(item));
    if (best.is_missing() || (largest ? less(best_key, key) : less(key, best_key))) {
      best = item;
      best_key = key;
    }
  }
  return best.is_missing() ? Value::undefined("No aggregated item, sequence was empty.") : best;
}

Value filter_unique(Runtime&, const Value& input, const Args& args) {
  const Bound bound("unique", args, {"case_sensitive", "attribute"}, 0);
  return make_iterator(
      [source = iterate(input), path = AttributePath(bound[1]), case_sensitive = bound.flag(0, false),
       seen = std::make_shared<DictObject>()](Value* item) {
        while (source->next(item)) {
          charge_steps(1);
          const Value key = case_sensitive ? path.get(*item) : ignore_case(path.get(*item));
          if (seen->find(key) != nullptr) continue;
          seen->set(key, Value::none());
          return true;
        }
        return false;
      },
      input.depth());
}

Value filter_groupby(Runtime&, const Value& input, const Args& args) {
  const Bound bound("groupby", args, {"attribute", "default", "case_sensitive"}, 1);
  const AttributePath path(bound[0]);
  const bool case_sensitive = bound.flag(2, false);
  const auto key_of = [&](const Value& item) {
    const Value key = path.get(item, bound[1]);
    return case_sensitive ? key : ignore_case(key);
  };
  std::vector<Value> items = collect(input);
  std::vector<Value> keys;
  for (const Value& item : items) keys.push_back(key_of(item));
  items = sorted(std::move(items), keys, false);
  std::vector<Value> groups;
  for (size_t i = 0; i < items.size();) {
    const Value key = key_of(items[i]);
    std::vector<Value> members;
    size_t end = i;
    while (end < items.size() && (end == i || equal(key_of(items[end]), key))) members.push_back(items[end++]);
    Value group = Value::tuple({path.get(items[i], bound[1]), Value::list(std::move(members))});
    group.object<ListObject>().group = true;
    groups.push_back(std::move(group));
    i = end;
  }
  return Value::list(std::move(groups));
}

Value filter_slice(Runtime&, const Value& input, const Args& args) {
  const Bound bound("slice", args, {"slices", "fill_with"}, 1);
  const int64_t num_slices = bound.integer(0, 1);
  const Value fill = bound[1];
  return make_iterator(
      [input, num_slices, fill, items = std::vector<Value>(), started = false, number = int64_t{0},
       offset = int64_t{0}](Value* item) mutable {
        if (!started) {
          started = true;
          items = collect(input);
          if (num_slices == 0) fail("integer division or modulo by zero");
        }
        if (number >= num_slices) return false;
        const auto size = static_cast<int64_t>(items.size());
        const int64_t per_slice = size / num_slices, with_extra = size % num_slices;
        const int64_t start = offset + number * per_slice;
        if (number < with_extra) ++offset;
        const int64_t end = offset + (number + 1) * per_slice;
        std::vector<Value> part(items.begin() + start, items.begin() + end);
        if (!fill.is_missing() && !fill.is_none() && number >= with_extra) part.push_back(fill);
        ++number;
        *item = Value::list(std::move(part));
        return true;
      },
      std::max(input.depth(), fill.depth()));
}

Value filter_batch(Runtime&, const Value& input, const Args& args) {
  const Bound bound("batch", args, {"linecount", "fill_with"}, 1);
  const int64_t line_count = bound.integer(0, 1);
  const Value fill = bound[1];
  return make_iterator(
      [input, source = std::shared_ptr<IteratorObject>(), line_count, fill, next = Value(),
       at_end = false](Value* item) mutable {
        if (source == nullptr) source = iterate(input);
        if (at_end) return false;
        std::vector<Value> line;
        if (!next.is_missing()) line.push_back(std::move(next));
        next = Value();
        Value value;
        while (true) {
          charge_steps(1);
          if (!source->next(&value)) {
            at_end = true;
            break;
          }
          if (static_cast<int64_t>(line.size()) == line_count) {
            next = std::move(value);
            break;
          }
          line.push_back(std::move(value));
          value = Value();
        }
        if (at_end) {
          if (line.empty()) return false;
          if (!fill.is_missing() && !fill.is_none()) {
            while (static_cast<int64_t>(line.size()) < line_count) {
              charge_steps(1);
              line.push_back(fill);
            }
          }
        }
        *item = Value::list(std::move(line));
        return true;
      },
      std::max(input.depth(), fill.depth()));
}

uint32_t depth_of(const Args& args) {
  uint32_t depth = 0;
  for (const Value& value : args.positional) depth = std::max(depth, value.depth());
  for (const auto& [name, value] : args.named) depth = std::max(depth, value.depth());
  return depth;
}

Value empty_iterator() { return iterator_over({}); }

Value filter_map(Runtime& runtime, const Value& input, const Args& args) {
  if (!truthy(input)) return empty_iterator();
  const uint32_t depth = std::max(input.depth(), depth_of(args));
  if (args.positional.empty() &&
      std::any_of(args.named.begin(), args.named.end(), [](const auto& a) { return a.first == "attribute"; })) {
    const Bound bound("map", args, {"attribute", "default"}, 1);
    return make_iterator(
        [input, source = std::shared_ptr<IteratorObject>(), path = AttributePath(bound[0]),
         fallback = bound[1]](Value* item) mutable {
          if (source == nullptr) source = iterate(input);
          if (!source->next(item)) return false;
          charge_steps(1);
          *item = path.get(*item, fallback);
          return true;
        },
        depth);
  }
  return make_iterator(
      [&runtime, input, source = std::shared_ptr<IteratorObject>(), args](Value* item) mutable {
        if (source == nullptr) {
          if (args.positional.empty()) fail("map requires a filter argument");
          source = iterate(input);
        }
        if (!source->next(item)) return false;
        charge_steps(1);
        if (!args.positional[0].is_string()) fail("No filter named {}.", repr(args.positional[0]));
        Args rest = args;
        rest.positional.erase(rest.positional.begin());
        *item = runtime.call_filter(args.positional[0].text(), *item, rest);
        return true;
      },
      depth);
}

template <bool wanted, bool by_attribute>
Value filter_select(Runtime& runtime, const Value& input, const Args& args) {
  if (!truthy(input)) return empty_iterator();
  return make_iterator(
      [&runtime, input, source = std::shared_ptr<IteratorObject>(), args](Value* item) mutable {
        if (source == nullptr) {
          if (by_attribute && args.positional.empty()) fail("Missing parameter for attribute name");
          source = iterate(input);
        }
        const size_t first = by_attribute ? 1 : 0;
        const AttributePath path = by_attribute ? AttributePath(args.positional[0]) : AttributePath();
        while (source->next(item)) {
          charge_steps(1);
          const Value subject = path.get(*item);
          bool holds = false;
          if (args.positional.size() > first) {
            if (!args.positional[first].is_string()) fail("No test named {}.", repr(args.positional[first]));
            Args rest = args;
            rest.positional.erase(rest.positional.begin(), rest.positional.begin() + static_cast<long>(first) + 1);
            holds = runtime.call_test(args.positional[first].text(), subject, rest);
          } else {
            holds = truthy(subject);
          }
          if (holds == wanted) return true;
        }
        return false;
      },
      std::max(input.depth(), depth_of(args)));
}

Value filter_attr(Runtime&, const Value& input, const Args& args) {
  const Bound bound("attr", args, {"name"}, 1);
  if (input.is_undefined()) fail("{}", input.undefined_message());
  const Value value = find_attribute(input, bound.text(0));
  if (!value.is_missing()) return value;
  return Value::undefined(fmt::format("'{} object' has no attribute {}", type_name(input), repr(bound[0])));
}

constexpr Builtin<FilterBody> kSequenceFilters[] = {
    {"length", filter_length},
    {"count", filter_length},
    {"default", filter_default},
    {"d", filter_default},
    {"first", filter_first},
    {"last", filter_last},
    {"reverse", filter_reverse},
    {"list", filter_list},
    {"items", filter_items},
    {"join", filter_join},
    {"sum", filter_sum},
    {"sort", filter_sort},
    {"dictsort", filter_dictsort},
    {"min", filter_extreme<false>},
    {"max", filter_extreme<true>},
    {"unique", filter_unique},
    {"groupby", filter_groupby},
    {"slice", filter_slice},
    {"batch", filter_batch},
    {"map", filter_map},
    {"select", filter_select<true, false>},
    {"reject", filter_select<false, false>},
    {"selectattr", filter_select<true, true>},
    {"rejectattr", filter_select<false, true>},
    {"attr", filter_attr},
};

}  // namespace

FilterBody find_sequence_filter(std::string_view name) { return find_builtin(kSequenceFilters, name); }

}  // namespace spate::jinja
