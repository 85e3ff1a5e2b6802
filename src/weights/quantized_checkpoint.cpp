#include "weights/quantized_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "base/log.h"
#include "weights/fp8_matrix.h"
#include "weights/packed_matrix.h"
#include "weights/problem_list.h"

namespace spate {
namespace {

PackedMatrices find_matrices(const Checkpoint& checkpoint, const QuantizationConfig& config) {
  PackedMatrices found;
  switch (config.method) {
    case QuantMethod::kGptq:
      find_gptq_matrices(checkpoint, config, found);
      break;
    case QuantMethod::kAwq:
      find_awq_matrices(checkpoint, config, found);
      break;
    case QuantMethod::kCompressedTensors:
      find_compressed_tensors_matrices(checkpoint, config, found);
      break;
    case QuantMethod::kFp8:
      break;
  }
  return found;
}

Status problems_in_all(std::vector<std::string> problems, QuantMethod method) {
  if (problems.empty()) return ok_status();
  return data_loss("the checkpoint is not what its quantization_config ({}) says, {}", quant_method_name(method),
                   list_problems(std::move(problems)));
}

TensorEntry entry_of(const PackedMatrix& matrix) {
  TensorEntry entry = *matrix.components()[0];
  entry.name = matrix.name();
  entry.quantized = matrix.spec();
  entry.dtype_name = weight_spec_name(matrix.spec());
  entry.dtype = {};
  entry.shape = {matrix.out_features(), matrix.in_features()};
  entry.num_bytes = 0;
  for (const TensorEntry* component : matrix.components()) entry.num_bytes += component->num_bytes;
  return entry;
}

}  // namespace

QuantizedCheckpoint::QuantizedCheckpoint(Checkpoint checkpoint, QuantMethod method)
    : method_(method), checkpoint_(std::move(checkpoint)) {}
QuantizedCheckpoint::~QuantizedCheckpoint() = default;

Result<std::unique_ptr<QuantizedCheckpoint>> QuantizedCheckpoint::open(Checkpoint checkpoint,
                                                                       const QuantizationConfig& config) {
  // Matrices point into the checkpoint: it is at its last place before they are made.
  std::unique_ptr<QuantizedCheckpoint> self(new QuantizedCheckpoint(std::move(checkpoint), config.method));
  PackedMatrices found = find_matrices(self->checkpoint_, config);
  self->fp8_matrices_ = find_fp8_matrices(self->checkpoint_, config, found);
  std::set<std::string_view> hidden(found.hidden.begin(), found.hidden.end());
  const std::set<std::string_view> unneeded(found.unneeded.begin(), found.unneeded.end());
  for (const auto& matrix : found.matrices) {
    for (const TensorEntry* component : matrix->components()) hidden.insert(component->name);
    self->num_requantized_ += matrix->is_requantized() ? 1 : 0;
    matrix->find_two_levels();
    self->matrix_of_[matrix->name()] = matrix.get();
    self->entries_.push_back(entry_of(*matrix));
  }
  for (const auto& matrix : self->fp8_matrices_) {
    hidden.insert(matrix->name());
    hidden.insert(matrix->scale_name());
    self->fp8_matrix_of_[matrix->name()] = matrix.get();
    self->entries_.push_back(matrix->entry());
  }
  for (const TensorEntry& entry : self->checkpoint_.entries()) {
    if (hidden.contains(entry.name)) continue;
    if (self->matrix_of_.contains(entry.name)) {
      found.problems.push_back(fmt::format("{} is there both as codes and as {}", entry.name, entry.dtype_name));
    }
    self->entries_.push_back(entry);
    self->entries_.back().is_optional = unneeded.contains(entry.name);
  }
  if (found.matrices.empty() && self->fp8_matrices_.empty() && found.problems.empty())
    found.problems.push_back("it holds no quantised matrix");
  RETURN_IF_ERROR(problems_in_all(std::move(found.problems), config.method));

  std::sort(self->entries_.begin(), self->entries_.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.file_idx, a.offset) < std::tie(b.file_idx, b.offset);
  });
  for (size_t i = 0; i < self->entries_.size(); ++i) self->index_[self->entries_[i].name] = i;
  self->matrices_ = std::move(found.matrices);
  for (const std::string& note : config.notes) log_info("weights", "{}: {}", quant_method_name(config.method), note);
  if (!self->fp8_matrices_.empty()) {
    log_info("weights", "{}: {} tensors of F8_E4M3 become bf16 while the model loads", quant_method_name(config.method),
             self->fp8_matrices_.size());
  }
  if (self->num_requantized_ > 0) {
    log_info("weights",
             "{}: the columns of {} of {} matrices are grouped out of order (act-order); they are quantised "
             "again as int8 in groups of 32",
             quant_method_name(config.method), self->num_requantized_, self->matrices_.size());
  }
  return self;
}

const TensorEntry* QuantizedCheckpoint::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &entries_[found->second];
}

Result<Tensor> QuantizedCheckpoint::rows(const TensorEntry& entry, int64_t begin, int64_t end,
                                         HostTensor& scratch) const {
  const auto found = fp8_matrix_of_.find(entry.name);
  return found == fp8_matrix_of_.end() ? checkpoint_.rows(entry, begin, end, scratch)
                                       : found->second->rows(begin, end, scratch);
}

Result<QuantizedHostRows> QuantizedCheckpoint::quantized_rows(const TensorEntry& entry, int64_t begin,
                                                              int64_t end) const {
  const auto found = matrix_of_.find(entry.name);
  CHECK(found != matrix_of_.end() && 0 <= begin && begin <= end && end <= entry.shape[0], "rows [{}, {}) of {} {}",
        begin, end, entry.name, entry.shape_string());
  return found->second->quantized_rows(begin, end);
}

void QuantizedCheckpoint::release(const TensorEntry& entry, int64_t begin, int64_t end) const {
  if (const auto found = matrix_of_.find(entry.name); found != matrix_of_.end()) {
    found->second->release(begin, end);
  } else if (const auto fp8 = fp8_matrix_of_.find(entry.name); fp8 != fp8_matrix_of_.end()) {
    fp8->second->release(begin, end);
  } else {
    checkpoint_.release(entry, begin, end);
  }
}

}  // namespace spate
