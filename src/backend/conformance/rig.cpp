#include "backend/conformance/rig.h"

#include <cmath>
#include <cstring>

#include "backend/reference/reference_device.h"

namespace spate::conformance {
namespace {

int64_t span_elements(const Tensor& t) {
  int64_t last = 0;
  for (int i = 0; i < t.rank(); ++i) {
    if (t.dim(i) == 0) return 0;
    last += (t.dim(i) - 1) * t.stride(i);
  }
  return last + 1;
}

}  // namespace

void Side::add_sibling(Side& sibling) {
  siblings_.push_back(&sibling);
  names_device_ = sibling.names_device_ = true;
}

std::vector<Side*> Side::all() {
  std::vector<Side*> sides{this};
  sides.insert(sides.end(), siblings_.begin(), siblings_.end());
  return sides;
}

std::string Side::name_case(const std::string& label) const {
  return names_device_ ? fmt::format("{}, {}", label, device_.description()) : label;
}

Tensor Side::put(const Tensor& host) {
  const HostTensor contiguous = copy_tensor(host);
  const auto bytes = static_cast<size_t>(host.num_bytes());
  buffers_.push_back(device_.allocate(std::max<size_t>(bytes, 16), MemoryKind::kDevice).value());
  void* data = buffers_.back().data();
  device_.copy_to_device(*stream_, data, contiguous.view().raw(), bytes);
  device_.synchronize(*stream_);
  return Tensor(data, host.dtype(), host.dims());
}

Side::Padded Side::put_padded(const Tensor& host, int64_t left, int64_t right) {
  const int64_t rows = host.dim(0), width = host.dim(1), whole_width = left + width + right;
  HostTensor whole = poisoned_tensor(host.dtype(), {rows, whole_width});
  const auto bytes = static_cast<size_t>(dtype_bytes(host.dtype()));
  for (int64_t i = 0; i < rows; ++i) {
    std::memcpy(static_cast<char*>(whole.view().raw()) + static_cast<size_t>(i * whole_width + left) * bytes,
                static_cast<const char*>(host.raw()) + static_cast<size_t>(i * host.stride(0)) * bytes,
                static_cast<size_t>(width) * bytes);
  }
  const Tensor device_whole = put(whole);
  return {device_whole.columns(left, left + width), device_whole};
}

Tensor Side::put_activations(const Tensor& host) {
  const int64_t element_bytes = dtype_bytes(host.dtype()), row_bytes = host.dim(1) * element_bytes;
  return put_padded(host, 0, (device_.activation_row_bytes(row_bytes) - row_bytes) / element_bytes).view;
}

HostTensor Side::get(const Tensor& device_tensor) {
  const int64_t elements = span_elements(device_tensor), bytes = elements * dtype_bytes(device_tensor.dtype());
  device_.synchronize(*stream_);
  HostTensor span(device_tensor.dtype(), {elements});
  device_.copy_to_host(*stream_, span.view().raw(), device_tensor.raw(), static_cast<size_t>(bytes));
  device_.synchronize(*stream_);
  HostTensor out(device_tensor.dtype(), device_tensor.dims());
  if (elements == 0) return out;
  const int64_t width = device_tensor.dim(device_tensor.rank() - 1), element_bytes = dtype_bytes(device_tensor.dtype());
  for (int64_t first = 0; first < device_tensor.num_elements(); first += width) {
    int64_t offset = 0, rest = first / width;
    for (int i = device_tensor.rank() - 2; i >= 0; --i) {
      offset += rest % device_tensor.dim(i) * device_tensor.stride(i);
      rest /= device_tensor.dim(i);
    }
    std::memcpy(static_cast<char*>(out.view().raw()) + first * element_bytes,
                static_cast<const char*>(span.view().raw()) + offset * element_bytes,
                static_cast<size_t>(width * element_bytes));
  }
  return out;
}

template <typename Pack>
const PackedWeight& Side::put_in_parts(const WeightDesc& desc, const Pack& pack) {
  weights_.push_back(std::make_unique<PackedWeight>(device_.create_weight(desc).value()));
  const int64_t n = desc.out_features, first = n / 3, second = n - n / 4;
  for (const auto& [begin, end] : {std::pair{int64_t{0}, first}, std::pair{second, n}, std::pair{first, second}}) {
    if (begin == end) continue;
    const Status status = pack(*weights_.back(), begin, end);
    CHECK(status.ok(), "{}", status.message());
  }
  return *weights_.back();
}

const PackedWeight& Side::put_weight(const Tensor& rows, const WeightSpec& spec) {
  return put_in_parts({.out_features = rows.dim(0), .in_features = rows.dim(1), .spec = spec},
                      [&](PackedWeight& weight, int64_t begin, int64_t end) {
                        return device_.pack_rows(weight, {.row = begin}, rows.rows(begin, end));
                      });
}

const PackedWeight& Side::put_quantized(const QuantizedRows& rows) {
  return put_in_parts({.out_features = rows.num_rows(), .in_features = rows.in_features(), .spec = rows.spec},
                      [&](PackedWeight& weight, int64_t begin, int64_t end) {
                        return device_.pack_quantized_rows(weight, {.row = begin}, rows.rows(begin, end));
                      });
}

const PackedWeight& Side::put_matrices(const Tensor& rows, const WeightSpec& spec, int64_t num_matrices) {
  const int64_t n = rows.dim(0) / num_matrices;
  const WeightDesc desc{.out_features = n, .in_features = rows.dim(1), .spec = spec, .num_matrices = num_matrices};
  weights_.push_back(std::make_unique<PackedWeight>(device_.create_weight(desc).value()));
  for (int64_t i = num_matrices - 1; i >= 0; --i) {
    const Status status = device_.pack_rows(*weights_.back(), {.matrix_idx = i}, rows.rows(i * n, (i + 1) * n));
    CHECK(status.ok(), "{}", status.message());
  }
  return *weights_.back();
}

KvView Side::put_kv(const KvLayerDesc& desc, int64_t num_blocks) {
  caches_.push_back(KvStorage::create(device_, {&desc, 1}, num_blocks).value());
  const Buffer& buffer = caches_.back().buffer();
  device_.fill_bytes(*stream_, buffer.data(), 0xff, buffer.bytes());  // NaN as bf16 and as f32
  return caches_.back().views().front();
}

void Side::clear() {
  device_.synchronize(*stream_);
  buffers_.clear();
  caches_.clear();
  weights_.clear();
}

Family::~Family() {
  if (!selected()) return;
  ++(num_failed_ == 0 ? report_.result.passed : report_.result.failed);
  if (!report_.options.print) return;
  report_.options.print(num_failed_ == 0 ? fmt::format("ok      {} ({} cases)", name_, num_cases_)
                                         : fmt::format("FAILED  {}: {} of {} cases, first {}", name_, num_failed_,
                                                       num_cases_, first_failure_));
}

void Family::check(const std::string& label, const std::string& difference) {
  ++num_cases_;
  if (difference.empty()) return;
  if (num_failed_++ == 0) first_failure_ = fmt::format("{}: {}", label, difference);
}

namespace {

std::string difference_of(const Outputs& actual, const Outputs& expected) {
  CHECK(actual.size() == expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    std::string text = close_to(actual[i].name, actual[i].value, expected[i].value, actual[i].tolerance);
    if (!text.empty()) return text;
  }
  return {};
}

}  // namespace

void Family::compare(Side& actual, Side& expected, const std::string& label, const CaseBody& body) {
  compare_either(actual, expected, label, body, nullptr);
}

void Family::compare_either(Side& actual, Side& expected, const std::string& label, const CaseBody& body,
                            const CaseBody& exact) {
  if (!selected()) return;
  const Outputs expected_outputs = body(expected);
  expected.clear();
  for (Side* side : actual.all()) {
    const Outputs actual_outputs = body(*side);
    side->clear();
    std::string difference = difference_of(actual_outputs, expected_outputs);
    if (!difference.empty() && exact) {
      const std::string from_exact = difference_of(actual_outputs, exact(expected));
      difference = from_exact.empty() ? "" : fmt::format("{}; without codes: {}", difference, from_exact);
      expected.clear();
    }
    check(side->name_case(label), difference);
  }
}

void Family::compare(Side& side, const std::string& label, const CaseBody& actual, const CaseBody& expected) {
  if (!selected()) return;
  for (Side* one : side.all()) {
    const Outputs actual_outputs = actual(*one);
    one->clear();
    const Outputs expected_outputs = expected(*one);
    one->clear();
    check(one->name_case(label), difference_of(actual_outputs, expected_outputs));
  }
}

}  // namespace spate::conformance

namespace spate {

ConformanceResult run_conformance(Device& device, Device& deterministic, const ConformanceOptions& options) {
  using namespace conformance;
  const std::unique_ptr<Device> reference = make_reference_device({}).value();
  Side actual(device), expected(*reference), deterministic_side(deterministic);
  std::vector<std::unique_ptr<Side>> siblings;
  for (Device* sibling : options.siblings) {
    siblings.push_back(std::make_unique<Side>(*sibling));
    actual.add_sibling(*siblings.back());
    siblings.push_back(std::make_unique<Side>(*sibling));
    deterministic_side.add_sibling(*siblings.back());
  }
  Report report{.options = options, .result = {}};
  const Sides sides{actual, expected, deterministic_side};
  add_linear_cases(report, sides);
  add_quantized_linear_cases(report, sides);
  add_elementwise_cases(report, sides);
  add_expert_cases(report, sides);
  add_attention_cases(report, sides);
  add_latent_cases(report, sides);
  add_step_cases(report, sides);
  add_sample_cases(report, sides);
  add_invariance_cases(report, sides);
  add_decode_steps_cases(report, sides);
  return report.result;
}

}  // namespace spate
