// gptq_test.cpp
//
// Goal     The factor is what its definition says, GPTQ loses less than rounding where inputs are correlated, and it is
//          rounding where they are not.
// Method   Small random matrices; losses computed in f64 from their definition.
#include "quantizer/gptq.h"

#include <algorithm>
#include <cmath>

#include "base/test_support.h"
#include "quantizer/cholesky.h"

#include "base/test.h"

namespace spate {
namespace {

float at(const Tensor& m, int64_t i, int64_t j) { return m.data<float>()[i * m.stride(0) + j]; }

// Second moments of inputs that share a few causes, as activations do.
HostTensor correlated_moments(Rng& rng, int64_t k, int64_t num_tokens) {
  const int64_t num_causes = std::max<int64_t>(1, k / 8);
  const HostTensor mixing = random_tensor(rng, DType::kF32, {num_causes, k});
  HostTensor x = random_tensor(rng, DType::kF32, {num_tokens, k}, 0.3f);
  for (int64_t t = 0; t < num_tokens; ++t) {
    for (int64_t c = 0; c < num_causes; ++c) {
      const float strength = rng.gaussian();
      for (int64_t j = 0; j < k; ++j) x.view().data<float>()[t * k + j] += strength * at(mixing, c, j);
    }
  }
  HostTensor moments(DType::kF32, {k, k});
  for (int64_t i = 0; i < k; ++i) {
    for (int64_t j = 0; j < k; ++j) {
      double sum = 0;
      for (int64_t t = 0; t < num_tokens; ++t) sum += double{at(x, t, i)} * at(x, t, j);
      moments.view().data<float>()[i * k + j] = static_cast<float>(sum);
    }
  }
  return moments;
}

// |x (W' - W)^T|^2 over the tokens of the moments.
double output_loss(const Tensor& moments, const Tensor& w, const CodedMatrix& coded) {
  const HostTensor decoded = decode(coded);
  const int64_t k = w.dim(1);
  double loss = 0;
  for (int64_t r = 0; r < w.dim(0); ++r) {
    for (int64_t i = 0; i < k; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < k; ++j) sum += double{at(moments, i, j)} * (at(decoded, r, j) - at(w, r, j));
      loss += sum * (at(decoded, r, i) - at(w, r, i));
    }
  }
  return loss;
}

TEST_CASE("invert_to_upper_factor gives U with U H U^T = 1, over block borders and threads") {
  Rng rng(test_seed());
  for (const int64_t k : {1, 2, 31, 64, 65, 200, 1100}) {
    CAPTURE(k);
    // H = A A^T + 1 from a thin A, so that k = 1100 is made in a moment.
    const int64_t thin = 5;
    const HostTensor a = random_tensor(rng, DType::kF32, {k, thin});
    HostTensor h(DType::kF64, {k, k});
    for (int64_t i = 0; i < k; ++i) {
      for (int64_t j = 0; j < k; ++j) {
        double sum = i == j ? 1.0 : 0.0;
        for (int64_t c = 0; c < thin; ++c) sum += double{at(a, i, c)} * at(a, j, c);
        h.view().data<double>()[i * k + j] = sum;
      }
    }
    HostTensor u(DType::kF64, {k, k});
    std::copy_n(h.view().data<double>(), k * k, u.view().data<double>());
    REQUIRE(invert_to_upper_factor(u, 3).ok());
    const double* upper = u.view().data<double>();
    double worst = 0, below = 0;
    // H = A A^T + 1, so U H U^T = (U A)(U A)^T + U U^T; checked on some rows.
    for (int64_t i = 0; i < k; i += std::max<int64_t>(1, k / 40)) {
      for (int64_t j = 0; j < i; ++j) below = std::max(below, std::fabs(upper[i * k + j]));
      for (int64_t j = 0; j < k; j += std::max<int64_t>(1, k / 40)) {
        double sum = 0;
        for (int64_t c = 0; c < k; ++c) sum += upper[i * k + c] * upper[j * k + c];
        for (int64_t t = 0; t < thin; ++t) {
          double left = 0, right = 0;
          for (int64_t c = 0; c < k; ++c) {
            left += upper[i * k + c] * at(a, c, t);
            right += upper[j * k + c] * at(a, c, t);
          }
          sum += left * right;
        }
        worst = std::max(worst, std::fabs(sum - (i == j ? 1.0 : 0.0)));
      }
    }
    CHECK(worst < 1e-9);
    CHECK(below == 0);
  }
}

TEST_CASE("a matrix that is not positive definite is refused") {
  HostTensor h(DType::kF64, {2, 2});
  h.span<double>()[0] = 1;
  h.span<double>()[3] = -1;
  CHECK(invert_to_upper_factor(h, 1).message().find("column 1 has the pivot -1") != std::string::npos);
}

TEST_CASE("gptq loses less than rtn on correlated inputs, in every format") {
  Rng rng(test_seed());
  // 200 columns: not a multiple of the blocks of 128, and the last group of each size is short.
  const HostTensor w = random_tensor(rng, DType::kF32, {37, 200});
  const HostTensor moments = correlated_moments(rng, 200, 400);
  for (const bool act_order : {false, true}) {
    const GptqFactor factor = GptqFactor::create(moments, {.act_order = act_order, .num_threads = 2}).value();
    for (const Codes codes : {Codes::kInt4, Codes::kInt8}) {
      for (const int64_t group_size : {0, 32, 64, 128, 192}) {
        for (const auto& [has_offsets, two_level] : {std::pair{false, false}, {true, false}, {false, true}}) {
          if (two_level && (codes != Codes::kInt4 || group_size == 0)) continue;
          const CodeFormat code_format{.spec = integer_spec(codes, group_size, has_offsets, two_level)};
          CAPTURE(weight_spec_name(code_format.spec));
          CAPTURE(act_order);
          const double rtn = output_loss(moments, w, round_to_nearest(code_format, w));
          const double gptq = output_loss(moments, w, factor.quantize(code_format, w));
          CHECK(gptq < 0.6 * rtn);
        }
      }
    }
  }
}

TEST_CASE("the result does not depend on the number of threads") {
  Rng rng(test_seed());
  const HostTensor w = random_tensor(rng, DType::kF32, {70, 96});
  const HostTensor moments = correlated_moments(rng, 96, 100);
  const CodeFormat format{.spec = integer_spec(Codes::kInt4, 32, false, true)};
  const auto codes = [&](int num_threads) {
    return GptqFactor::create(moments, {.num_threads = num_threads}).value().quantize(format, w);
  };
  const CodedMatrix one = codes(1), five = codes(5);
  const auto a = one.codes.span<int8_t>(), b = five.codes.span<int8_t>();
  CHECK(std::equal(a.begin(), a.end(), b.begin()));
}

TEST_CASE("without correlations and with whole ranges gptq rounds to nearest") {
  Rng rng(test_seed());
  const int64_t k = 600;  // one group beyond the searched width: the range is the row's
  const HostTensor w = random_tensor(rng, DType::kF32, {4, k});
  HostTensor moments(DType::kF32, {k, k});
  for (int64_t i = 0; i < k; ++i) moments.view().data<float>()[i * k + i] = 3;
  const CodeFormat format{.spec = integer_spec(Codes::kInt8, 0, false)};
  const CodedMatrix gptq = GptqFactor::create(moments, {}).value().quantize(format, w),
                    rtn = round_to_nearest(format, w);
  const auto a = gptq.codes.span<int8_t>(), b = rtn.codes.span<int8_t>();
  CHECK(std::equal(a.begin(), a.end(), b.begin()));
}

TEST_CASE("an input that never came, and no inputs at all, do no harm") {
  Rng rng(test_seed());
  const HostTensor w = random_tensor(rng, DType::kF32, {3, 64});
  HostTensor moments = correlated_moments(rng, 64, 200);
  for (int64_t i = 0; i < 64; ++i)
    moments.view().data<float>()[i * 64 + 7] = moments.view().data<float>()[7 * 64 + i] = 0;
  const HostTensor nothing(DType::kF32, {64, 64});
  for (const Tensor& of : {moments.view(), nothing.view()}) {
    const CodedMatrix coded =
        GptqFactor::create(of, {}).value().quantize({.spec = integer_spec(Codes::kInt4, 32, false, true)}, w);
    const HostTensor decoded = decode(coded);
    for (const float value : decoded.span<float>()) CHECK(std::isfinite(value));
  }
}

}  // namespace
}  // namespace spate
