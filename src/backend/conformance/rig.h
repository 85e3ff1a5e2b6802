// What the cases share: the two devices side by side, tensors on them, families and their report.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/conformance/conformance.h"
#include "backend/kv_storage.h"
#include "backend/ops.h"
#include "base/tensor_compare.h"
#include "base/test_support.h"

namespace spate::conformance {

// A device, a stream on it, and the tensors of the current case.
class Side {
 public:
  explicit Side(Device& device) : device_(device), stream_(device.create_stream()) {}

  void add_sibling(Side& sibling);
  std::vector<Side*> all();                               // this side and its siblings (ConformanceOptions::siblings)
  std::string name_case(const std::string& label) const;  // the label, and the device where it has siblings

  Device& device() { return device_; }
  Stream& stream() { return *stream_; }
  const OpTable& ops() { return device_.ops(); }

  Tensor put(const Tensor& host);  // a contiguous copy
  // The columns [left, left + width) of a wider matrix, whose other elements hold poison; `whole` is all of it, so that
  // a write beside the view shows.
  struct Padded {
    Tensor view, whole;
  };
  Padded put_padded(const Tensor& host, int64_t left, int64_t right);
  Tensor put_activations(const Tensor& host);   // rows as far apart as the model lays them out on this device
  HostTensor get(const Tensor& device_tensor);  // contiguous
  const PackedWeight& put_weight(const Tensor& rows, const WeightSpec& spec);
  const PackedWeight& put_weight(const Tensor& rows, Codes codes) { return put_weight(rows, {.codes = codes}); }
  const PackedWeight& put_quantized(const QuantizedRows& rows);
  // A weight of num_matrices; rows: of the first one, then of the second.
  const PackedWeight& put_matrices(const Tensor& rows, const WeightSpec& spec, int64_t num_matrices);
  // num_blocks blocks full of NaN.
  KvView put_kv(const KvLayerDesc& desc, int64_t num_blocks);
  void clear();  // ends the case

 private:
  // In three parts, the middle one last: rows may come in any order.
  template <typename Pack>
  const PackedWeight& put_in_parts(const WeightDesc& desc, const Pack& pack);

  Device& device_;
  std::unique_ptr<Stream> stream_;
  std::vector<Side*> siblings_;
  bool names_device_ = false;
  std::vector<Buffer> buffers_;
  std::vector<KvStorage> caches_;
  std::vector<std::unique_ptr<PackedWeight>> weights_;
};

struct Output {
  const char* name;
  HostTensor value;
  Tolerance tolerance;  // zero: the same bits, or both NaN
};
using Outputs = std::vector<Output>;
using CaseBody = std::function<Outputs(Side& side)>;

struct Report {
  const ConformanceOptions& options;
  ConformanceResult result;
  int num_families = 0;  // selected or not
};

// One line of the report; ends with its scope.
class Family {
 public:
  Family(Report& report, std::string name)
      : report_(report), name_(std::move(name)), family_idx_(report.num_families++) {}
  ~Family();
  Family(const Family&) = delete;
  Family& operator=(const Family&) = delete;

  bool selected() const {
    const ConformanceOptions& options = report_.options;
    return family_idx_ % options.num_shards == options.shard_idx && name_.find(options.filter) != std::string::npos;
  }
  // Runs the body on both sides; the outputs must agree within the tolerances that the actual side gives. Of a side
  // with siblings all are compared.
  void compare(Side& actual, Side& expected, const std::string& label, const CaseBody& body);
  // As above; also passes what agrees with `exact` of the expected side, such as the same without codes of x.
  void compare_either(Side& actual, Side& expected, const std::string& label, const CaseBody& body,
                      const CaseBody& exact);
  // Runs two bodies on one side and on each sibling.
  void compare(Side& side, const std::string& label, const CaseBody& actual, const CaseBody& expected);
  void check(const std::string& label, const std::string& difference);  // an empty difference passes

 private:
  Report& report_;
  std::string name_;
  int family_idx_;
  int num_cases_ = 0, num_failed_ = 0;
  std::string first_failure_;
};

struct Sides {
  Side& actual;
  Side& expected;  // the reference
  Side& deterministic;
};

// bf16 has 8 bits of precision: two roundings of almost the same number differ by at most one unit in the last place,
// 2^-7 of it.
constexpr double kBf16Ulp = 0x1p-7;
inline double ulp_of(DType act) { return act == DType::kBf16 ? kBf16Ulp : 0x1p-22; }
inline const char* act_name(DType act) { return act == DType::kBf16 ? "bf16" : "f32"; }
constexpr DType kActs[] = {DType::kF32, DType::kBf16};

void add_linear_cases(Report& report, Sides sides);
void add_quantized_linear_cases(Report& report, Sides sides);
void add_elementwise_cases(Report& report, Sides sides);
void add_expert_cases(Report& report, Sides sides);  // none where the back-end does not run experts
void add_attention_cases(Report& report, Sides sides);
void add_latent_cases(Report& report, Sides sides);  // none where the back-end has no latent attention
void add_step_cases(Report& report, Sides sides);
void add_decode_steps_cases(Report& report, Sides sides);
void add_sample_cases(Report& report, Sides sides);
void add_invariance_cases(Report& report, Sides sides);

}  // namespace spate::conformance
