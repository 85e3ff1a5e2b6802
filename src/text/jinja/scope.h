// Which variable a name means. jinja2 decides this when it compiles a template, by rules that differ from a plain
// chain of scopes: a name that is assigned anywhere at one level is that level's variable from its beginning on
// (unset until then, even if the caller passed one of that name), assignments in an if belong to the scope around
// it, a for body starts every iteration afresh, a macro sees the variables around its definition as they are when
// it is called. These rules are kept exactly; every name gets a slot here, so the interpreter needs no maps.
//
// Also found here, as in jinja2: unknown filters and tests outside of a condition, break outside of a loop, an
// assignment to `loop` inside a loop.
#pragma once

#include "text/jinja/ast.h"

namespace spate::jinja {

struct RootScope {
  Scope scope;
  int num_slots = 0;
};

RootScope resolve_names(Body& body);  // throws Error with a line

}  // namespace spate::jinja
