#include "base/shape_check.h"

namespace spate {

int64_t Dim::value() const {
  if (check_ == nullptr) return fixed_;
  const auto& named = check_->named_[static_cast<size_t>(index_)];
  CHECK(named.value >= 0, "{}: dimension {} is read before a tensor bound it", check_->op_, named.name);
  return named.value;
}

Dim ShapeCheck::dim(const char* name) {
  named_.push_back({name});
  return Dim(this, static_cast<int>(named_.size()) - 1);
}

std::string ShapeCheck::describe(std::initializer_list<Dim> dims) const {
  std::string text = "[";
  for (const Dim& dim : dims) {
    if (text.size() > 1) text += ", ";
    if (dim.check_ == nullptr) {
      text += fmt::format("{}", dim.fixed_);
      continue;
    }
    const Named& named = named_[static_cast<size_t>(dim.index_)];
    text += named.value < 0 ? std::string(named.name) : fmt::format("{} = {}", named.name, named.value);
  }
  return text + "]";
}

void ShapeCheck::tensor(const char* name, const Tensor& tensor, DType dtype, std::initializer_list<Dim> dims) {
  const bool same_kind = tensor.dtype() == dtype && tensor.rank() == static_cast<int>(dims.size());
  CHECK(same_kind, "{}: {} is {} {}, needs {} {}", op_, name, dtype_name(tensor.dtype()), tensor.shape_string(),
        dtype_name(dtype), describe(dims));
  int i = 0;
  for (const Dim& dim : dims) {
    int64_t wanted = dim.fixed_;
    if (dim.check_ != nullptr) {
      Named& named = named_[static_cast<size_t>(dim.index_)];
      if (named.value < 0) named.value = tensor.dim(i);
      wanted = named.value;
    }
    CHECK(tensor.dim(i) == wanted, "{}: {} is {} {}, needs {} {} (dim {})", op_, name, dtype_name(tensor.dtype()),
          tensor.shape_string(), dtype_name(dtype), describe(dims), i);
    ++i;
  }
}

}  // namespace spate
