// weight_loader_test.cpp
//
// Goal     Parameters hold exactly the declared slices of the checkpoint, converted once; every problem of a
//          checkpoint is said, all at once; dummy weights are the same whatever the sharding.
// Method   A source in memory, whose elements are their own index, so that a slice is recognised; the reference back-
//          end, whose packed weights are row-major.
#include "weights/weight_loader.h"

#include <cmath>
#include <map>

#include "backend/reference/reference_device.h"
#include "base/tensor_compare.h"
#include "base/test_support.h"

#include "base/test.h"

namespace spate {
namespace {

// Tensors in memory; element i of each is i. Remembers which rows were released.
class MemorySource final : public WeightSource {
 public:
  void add(const std::string& name, DType dtype, std::vector<int64_t> shape) {
    TensorEntry entry{
        .name = name, .dtype_name = std::string(dtype_name(dtype)), .dtype = dtype, .shape = std::move(shape)};
    HostTensor values(dtype, std::span<const int64_t>(entry.shape));
    for (int64_t i = 0; i < values.view().num_elements(); ++i) {
      const auto at = static_cast<size_t>(i);
      if (dtype == DType::kF32) values.span<float>()[at] = static_cast<float>(i);
      if (dtype == DType::kBf16) values.span<Bf16>()[at] = Bf16::from_float(static_cast<float>(i));
      if (dtype == DType::kF16) values.span<F16>()[at] = F16::from_float(static_cast<float>(i));
    }
    entry.offset = entries_.size();
    entries_.push_back(entry);
    values_[name] = std::move(values);
  }
  void set(const std::string& name, int64_t i, float value) {
    const Tensor& values = values_.at(name).view();
    if (values.dtype() == DType::kF32) values.data<float>()[i] = value;
    if (values.dtype() == DType::kBf16) values.data<Bf16>()[i] = Bf16::from_float(value);
    if (values.dtype() == DType::kF16) values.data<F16>()[i] = F16::from_float(value);
  }
  const std::vector<TensorEntry>& entries() const override { return entries_; }
  const TensorEntry* find(std::string_view name) const override {
    for (const TensorEntry& entry : entries_) {
      if (entry.name == name) return &entry;
    }
    return nullptr;
  }
  const std::string& file_name(int) const override { return file_name_; }
  Result<Tensor> rows(const TensorEntry& entry, int64_t begin, int64_t end, HostTensor&) const override {
    return values_.at(entry.name).view().rows(begin, end);
  }
  void release(const TensorEntry&, int64_t begin, int64_t end) const override { released_rows += end - begin; }
  mutable int64_t released_rows = 0;

 private:
  std::vector<TensorEntry> entries_;
  std::map<std::string, HostTensor> values_;
  std::string file_name_ = "memory";
};

struct Fixture {
  std::unique_ptr<Device> device = make_reference_device({}).value();

  PackedWeight weight(int64_t rows, int64_t columns, Codes codes = Codes::kF32) {
    return device->create_weight({.out_features = rows, .in_features = columns, .spec = {.codes = codes}}).value();
  }
  static float at(const PackedWeight& weight, int64_t row, int64_t column) {
    return static_cast<const float*>(weight.data())[row * weight.desc().in_features + column];
  }
};

TEST_CASE("slices of rows and columns land where they are declared") {
  Fixture f;
  MemorySource source;
  source.add("q", DType::kF32, {6, 8});
  source.add("k", DType::kBf16, {4, 8});
  source.add("bias", DType::kF16, {6});
  source.add("old.rotary_emb.inv_freq", DType::kF32, {3});
  PackedWeight fused = f.weight(6, 4);
  HostTensor bias = poisoned_tensor(DType::kF32, {3});
  WeightLoader loader(f.device.get());
  loader.add(WeightLoader::MatrixSlice{"q", 6, 8, {3, 3}, {4, 4}, &fused, 0});
  loader.add(WeightLoader::MatrixSlice{"k", 4, 8, {2, 2}, {4, 4}, &fused, 3});
  loader.add_zero_rows(&fused, {5, 1});
  loader.add(WeightLoader::VectorSlice{"bias", 6, {3, 3}, bias.view(), 0});
  loader.ignore("*.rotary_emb.inv_freq");
  int64_t last_done = 0, total = 0;
  const Status status = loader.load(source, [&](int64_t done, int64_t of) {
    CHECK(done > last_done);
    last_done = done;
    total = of;
  });
  REQUIRE_MESSAGE(status.ok(), status.to_string());
  CHECK(f.at(fused, 0, 0) == 3 * 8 + 4);
  CHECK(f.at(fused, 2, 3) == 5 * 8 + 7);
  CHECK(f.at(fused, 3, 0) == 2 * 8 + 4);
  CHECK(f.at(fused, 4, 3) == 3 * 8 + 7);
  for (int64_t c = 0; c < 4; ++c) CHECK(f.at(fused, 5, c) == 0);
  CHECK(bias.span<float>()[0] == 3);
  CHECK(bias.span<float>()[2] == 5);
  CHECK(last_done == total);
  CHECK(total == 3 * 4 * 4 + 2 * 4 * 2 + 3 * 2);
  CHECK(source.released_rows == 5);
}

TEST_CASE("a matrix of several pieces is complete") {
  Fixture f;
  const int64_t rows = 3000, columns = 2048;  // 24 MB: three pieces
  MemorySource source;
  source.add("w", DType::kF32, {rows, columns});
  PackedWeight weight = f.weight(rows, columns);
  WeightLoader loader(f.device.get());
  loader.add(WeightLoader::MatrixSlice{"w", rows, columns, {0, rows}, {0, columns}, &weight, 0});
  REQUIRE(loader.load(source).ok());
  int64_t num_wrong = 0;
  for (int64_t r = 0; r < rows; ++r)
    num_wrong += f.at(weight, r, r % columns) != static_cast<float>(r * columns + r % columns);
  CHECK(num_wrong == 0);
}

TEST_CASE("a value that is not finite is not quantised away") {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (const float value : {NAN, INFINITY, -INFINITY}) {
      Fixture f;
      MemorySource source;
      source.add("w", dtype, {4, 64});
      source.set("w", 2 * 64 + 35, value);
      // Rows [1, 4), columns [32, 64): the message counts from the checkpoint's corner.
      const auto load = [&](const WeightSpec& spec) {
        PackedWeight weight = f.device->create_weight({.out_features = 3, .in_features = 32, .spec = spec}).value();
        WeightLoader loader(f.device.get());
        loader.add(WeightLoader::MatrixSlice{"w", 4, 64, {1, 3}, {32, 32}, &weight, 0});
        return loader.load(source);
      };
      INFO(dtype_name(dtype), " ", value);
      CHECK(load({.codes = Codes::kF32}).ok());  // there it shows in the logits
      for (const WeightSpec& spec : {integer_spec(Codes::kInt8), integer_spec(Codes::kInt4, 32, false, true)}) {
        const Status status = load(spec);
        CHECK(status.code() == StatusCode::kDataLoss);
        CHECK(says(status, "w: the element [2, 35] is NaN or infinite"));
      }
      source.set("w", 2 * 64 + 35, dtype == DType::kF16 ? 65504.0f : 1e30f);
      CHECK(load(integer_spec(Codes::kInt8)).ok());
    }
  }
}

TEST_CASE("all problems of a checkpoint are listed at once, before anything is filled") {
  Fixture f;
  MemorySource source;
  source.add("wrong_shape", DType::kF32, {4, 7});
  source.add("wrong_dtype", DType::kI32, {4, 8});
  source.add("surprise", DType::kF32, {2});
  PackedWeight a = f.weight(4, 8), b = f.weight(4, 8), c = f.weight(4, 8);
  HostTensor d = poisoned_tensor(DType::kF32, {2});
  WeightLoader loader(f.device.get());
  loader.add(WeightLoader::MatrixSlice{"wrong_shape", 4, 8, {0, 4}, {0, 8}, &a, 0});
  loader.add(WeightLoader::MatrixSlice{"wrong_dtype", 4, 8, {0, 4}, {0, 8}, &b, 0});
  loader.add(WeightLoader::MatrixSlice{"absent", 4, 8, {0, 4}, {0, 8}, &c, 0});
  loader.add(WeightLoader::VectorSlice{"absent.bias", 2, {0, 2}, d.view(), 0});
  const Status status = loader.load(source);
  CHECK(says(status, "5 problems"));
  CHECK(says(status, "wrong_shape is [4, 7], config.json makes it [4, 8]"));
  CHECK(says(status, "wrong_dtype is i32, needs BF16, F16 or F32"));
  CHECK(says(status, "absent [4, 8] is missing"));
  CHECK(says(status, "absent.bias [2] is missing"));
  CHECK(says(status, "surprise [2] in memory is not a parameter of this model"));
  CHECK(source.released_rows == 0);
}

TEST_CASE("a parameter that is filled twice or in part is a problem") {
  Fixture f;
  MemorySource source;
  source.add("a", DType::kF32, {4, 8});
  source.add("b", DType::kF32, {4, 8});
  PackedWeight weight = f.weight(8, 8);
  const auto verify = [&](int64_t dst_of_b) {
    WeightLoader loader(f.device.get());
    loader.add(WeightLoader::MatrixSlice{"a", 4, 8, {0, 4}, {0, 8}, &weight, 0});
    loader.add(WeightLoader::MatrixSlice{"b", 4, 8, {0, 4}, {0, 8}, &weight, dst_of_b});
    return loader.verify(source);
  };
  CHECK(verify(4).ok());
  CHECK(says(verify(3), "rows [3, 4) are filled twice"));
  CHECK(says(verify(3), "7 rows are filled, it has 8"));
  CHECK(says(verify(5), "rows [4, 5) are filled never"));
}

TEST_CASE("dummy weights: seeded, spread like a trained model's, the same for any sharding") {
  Fixture f;
  const int64_t rows = 600, columns = 40;  // three windows of rows
  const auto make = [&](uint64_t seed, Range row_range, Range column_range) {
    PackedWeight weight = f.weight(row_range.count, column_range.count);
    HostTensor norm = poisoned_tensor(DType::kF32, {4});
    WeightLoader loader(f.device.get());
    loader.add(WeightLoader::MatrixSlice{"w", rows, columns, row_range, column_range, &weight, 0});
    loader.add(WeightLoader::VectorSlice{"norm", 4, {0, 4}, norm.view(), 0, 1.0f});
    CHECK(loader.load_dummy(seed).ok());
    CHECK(norm.span<float>()[3] == 1.0f);
    return weight;
  };
  const PackedWeight whole = make(7, {0, rows}, {0, columns});
  double sum_squares = 0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) sum_squares += f.at(whole, r, c) * f.at(whole, r, c);
  }
  CHECK(sum_squares / (rows * columns) == doctest::Approx(0.02 * 0.02).epsilon(0.05));

  const PackedWeight part = make(7, {221, 379}, {10, 30});
  int64_t num_different = 0;
  for (int64_t r = 0; r < 379; ++r) {
    for (int64_t c = 0; c < 30; ++c) num_different += f.at(part, r, c) != f.at(whole, 221 + r, 10 + c);
  }
  CHECK(num_different == 0);
  const PackedWeight other = make(8, {0, rows}, {0, columns});
  CHECK(f.at(other, 0, 0) != f.at(whole, 0, 0));
}

TEST_CASE("dummy weights: a transposed slice holds the numbers that another weight holds as they are") {
  Fixture f;
  const int64_t rows = 600, columns = 40;  // the slice crosses a window of rows
  PackedWeight whole = f.weight(rows, columns), transposed = f.weight(22, 290);
  WeightLoader loader(f.device.get());
  loader.add(WeightLoader::MatrixSlice{"w", rows, columns, {0, rows}, {0, columns}, &whole, 0});
  WeightLoader::MatrixSlice slice{"w", rows, columns, {130, 290}, {11, 20}, &transposed, 2};
  slice.is_transposed = slice.shares_tensor = true;
  loader.add(std::move(slice));
  loader.add_zero_rows(&transposed, {0, 2});
  REQUIRE(loader.load_dummy(7).ok());
  int64_t num_different = 0;
  for (int64_t r = 0; r < 20; ++r) {
    for (int64_t c = 0; c < 290; ++c) num_different += f.at(transposed, 2 + r, c) != f.at(whole, 130 + c, 11 + r);
  }
  CHECK(num_different == 0);
}

}  // namespace
}  // namespace spate
