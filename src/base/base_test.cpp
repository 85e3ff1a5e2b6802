// Goal    The bottom layer does what its headers say: half floats convert exactly, views address what they
//         claim, the comparator reports the worst element, Philox equals its published vectors.
#include <cmath>
#include <vector>

#include "base/rng.h"
#include "base/shape_check.h"
#include "base/status.h"
#include "base/tensor_compare.h"
#include "base/test_support.h"
#include "base/test.h"

namespace spate {

TEST_CASE("f16: every finite value survives the round trip through float") {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const F16 half{static_cast<uint16_t>(bits)};
    const float value = half.to_float();
    if (std::isnan(value)) continue;
    CHECK(F16::from_float(value).bits == half.bits);
  }
}

TEST_CASE("f16: rounds to nearest even, overflows to infinity") {
  CHECK(F16::from_float(1.0f + 0x1p-11f).bits == 0x3c00);          // a tie goes to the even side
  CHECK(F16::from_float(1.0f + 3 * 0x1p-11f).bits == 0x3c02);
  CHECK(F16::from_float(65519.0f).bits == 0x7bff);
  CHECK(F16::from_float(65520.0f).bits == 0x7c00);
  CHECK(F16::from_float(0x1p-24f).bits == 1);
  CHECK(F16::from_float(0x1p-25f).bits == 0);
}

TEST_CASE("bf16: rounds to nearest even and keeps NaN") {
  CHECK(Bf16::from_float(1.0f + 0x1p-8f).bits == 0x3f80);
  CHECK(Bf16::from_float(1.0f + 3 * 0x1p-8f).bits == 0x3f82);
  CHECK(std::isnan(Bf16::from_float(std::nanf("")).to_float()));
}

TEST_CASE("philox4x32-10: the known-answer vectors of its authors") {
  const std::array<uint32_t, 4> zeros{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
  CHECK(philox4x32(0, 0, 0) == zeros);
  const std::array<uint32_t, 4> ones{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
  CHECK(philox4x32(~0ull, ~0ull, ~0ull) == ones);
}

TEST_CASE("rng: many gaussians are those of one call after the other, wherever a block stands") {
  for (const int num_before : {0, 1, 4, 6}) {
    Rng one(5, 3), many(5, 3);
    for (int i = 0; i < num_before; ++i) CHECK(one.next_u32() == many.next_u32());
    std::vector<float> values(1000);
    many.fill_gaussian(values);
    for (const float value : values) REQUIRE(value == one.gaussian());
    CHECK(one.next_u32() == many.next_u32());
  }
}

TEST_CASE("tensor: rows, columns and split_last address the same elements") {
  HostTensor host(DType::kI32, {3, 8});
  for (int i = 0; i < 24; ++i) host.span<int32_t>()[static_cast<size_t>(i)] = i;
  const Tensor part = host.view().rows(1, 3).columns(4, 8).split_last(2, 2);  // [2, 2, 2]
  CHECK(part.shape_string() == "[2, 2, 2]");
  CHECK(element_at(part, 0) == 12);
  CHECK(element_at(part, 3) == 15);
  CHECK(element_at(part, 7) == 23);
  CHECK_FALSE(part.is_contiguous());
  CHECK(equal_bits("copy", copy_tensor(part), part).empty());
}

TEST_CASE("comparator: counts, finds the worst element, fails on NaN") {
  HostTensor a(DType::kF32, {2, 3}), b(DType::kF32, {2, 3});
  CHECK(close_to("a", a, b, {}).empty());
  a.span<float>()[4] = 0.5f;
  b.span<float>()[4] = 0.4f;
  a.span<float>()[1] = 0.001f;
  const std::string text = close_to("a", a, b, {.rel = 0.01, .abs = 1e-4});
  CHECK(text.find("2 of 6") != std::string::npos);
  CHECK(text.find("worst at [1, 1]") != std::string::npos);
  a.span<float>()[0] = std::nanf("");
  CHECK(close_to("a", a, b, {.rel = 10, .abs = 10}).find("1 of 6") != std::string::npos);
}

TEST_CASE("shape check: binds a named dimension at the first tensor that has it") {
  ShapeCheck check("op");
  const Dim rows = check.dim("rows");
  const HostTensor x(DType::kF32, {5, 4});
  check.tensor("x", x, DType::kF32, {rows, 4});
  CHECK(rows.value() == 5);
}

TEST_CASE("result: holds the value or the status, with context") {
  const Result<int> good = 3;
  CHECK(good.value() == 3);
  const Result<int> bad = not_found("no {}", "x").with_context("here");
  CHECK(bad.status().message() == "here: no x");
  CHECK(bad.status().to_string() == "not found: here: no x");
}

}  // namespace spate
