// GPTQ: column after column, the error that rounding makes is taken out of the columns that are still to come
// (Frantar et al., 2022), so that the sum over a row moves less than its parts.
//
// Threads: pure, and uses threads of its own for the length of a call.
#pragma once

#include <vector>

#include "base/status.h"
#include "quantizer/coded_matrix.h"

namespace spate {

struct GptqOptions {
  double damping = 0.01;   // of the mean diagonal of H, added to the diagonal
  bool act_order = false;  // columns of large inputs first; the groups keep their columns, with scales fitted before
  int num_threads = 1;
};

// The factor U of H^-1 = U^T U for GPTQ, once for all matrices that read the same input.
class GptqFactor {
 public:
  // moments [k, k] f32: the sum of x x^T over the calibration inputs. H is a multiple of it, and a factor in H does not
  // matter. Error: inputs that are not finite.
  static Result<GptqFactor> create(const Tensor& moments, const GptqOptions& options);

  // w [n, k] f32. `format` with group_size 0: one scale a row.
  CodedMatrix quantize(const CodeFormat& format, const Tensor& w) const;

 private:
  GroupScale fit(const CodeFormat& format, float row_scale, const float* values, int64_t begin, int64_t n) const;
  void quantize_rows(const Tensor& w, int64_t first, int64_t last, CodedMatrix& matrix) const;

  GptqOptions options_;
  HostTensor moments_;          // [k, k] f32, in the order of `order_`
  HostTensor upper_;            // [k, k] f32, the same
  std::vector<int64_t> order_;  // column order_[i] is the i-th to be coded
};

}  // namespace spate
