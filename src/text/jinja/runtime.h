// One render of a template: walks the tree, keeps the variables, collects the text. Lives on one thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/scope.h"

namespace spate::jinja {

// strftime_now(format): the text.
using Clock = std::function<std::string(const std::string& format)>;

class Runtime {
 public:
  Runtime(const Body& body, const RootScope& root, const DictObject& context, const Clock& clock);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  std::string render();

  // What filters, methods and functions need.
  Value call(const Value& callee, const Args& args);
  Value call_filter(const std::string& name, const Value& input, const Args& args);
  bool call_test(const std::string& name, const Value& input, const Args& args);
  const Clock& clock() const { return clock_; }
  // Keeps an object that templates can change until the render ends, where all of them are emptied: they may hold
  // one another in a circle or in a long chain.
  void keep(const std::shared_ptr<Object>& object) { kept_.push_back(object); }

 private:
  enum class Flow { kNormal, kBreak, kContinue };
  // The text that a block of the template produces, instead of the output.
  class Capture;

  Flow run(const Body& body);
  Flow run(const Stmt& stmt);
  Flow run_statement(const Stmt& stmt);
  Flow run_if(const Stmt& stmt);
  Flow run_for(const Stmt& stmt);
  Flow run_loop(const Stmt& stmt, const Value& items, int64_t depth0, const std::shared_ptr<Activation>& closure);
  Flow run_set_block(const Stmt& stmt);
  Flow run_with(const Stmt& stmt);
  Flow run_filter_block(const Stmt& stmt);
  void run_call_block(const Stmt& stmt);
  void run_block(const Stmt& stmt);
  void define_macro(const Stmt& stmt);
  Value make_macro(const Stmt& stmt);
  Value call_macro(const MacroObject& macro, const Args& args);
  Value call_loop(LoopObject& loop, const Args& args);
  Value run_recursive(const Stmt& stmt, const Value& items, int64_t depth0, const std::shared_ptr<Activation>& closure);
  Value filtered(const Stmt& stmt, const Value& items);
  void set_macro_arguments(const Stmt& stmt, const Args& args);

  void enter(const Scope& scope);
  Value& slot(const Slot& place);
  void assign(const Expr& target, const Value& value, bool at_top_level);
  void write(std::string_view text);
  void write_text_value(const Value& value);

  Value eval(const Expr& expr);
  Value eval_node(const Expr& expr);
  Value eval_name(const Expr& expr);
  Value eval_chain(const Expr& expr);
  Value eval_compare(const Expr& expr);
  Value eval_call(const Expr& expr, const Value* caller);
  Value eval_filter(const Expr& expr, const Value* block_text);
  bool eval_test(const Expr& expr);
  Args eval_args(const CallArgs& call);

  const Body& body_;
  const RootScope& root_;
  const DictObject& context_;
  const Clock& clock_;
  DictObject exported_;  // what the top level has set: seen by blocks
  std::shared_ptr<Activation> activation_;
  std::vector<std::shared_ptr<Object>> kept_;
  std::vector<std::shared_ptr<Activation>> kept_activations_;
  std::string* out_ = nullptr;
  size_t num_buffered_bytes_ = 0;  // in the output and all captures
  int num_open_calls_ = 0;
};

// Operators (operators.cpp).
Value binary(char op, const Value& a, const Value& b);  // + - * / f % ^
Value negate(const Value& value);
Value plus(const Value& value);
bool compare(char op, const Value& a, const Value& b);  // = ! < l > g i n
bool contains(const Value& container, const Value& item);
Value get_item(const Value& object, const Value& index);
Value get_attribute(const Value& object, const std::string& name);
Value slice(const Value& object, const Value& start, const Value& stop, const Value& step);  // missing: not given

}  // namespace spate::jinja
