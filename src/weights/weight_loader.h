// WeightLoader: what a rank needs of a checkpoint, declared first, then verified like a compiler and filled.
//
// A layer declares slices: rows and columns of a checkpoint tensor that go to rows of a PackedWeight or to a device
// vector. load() checks everything before the first byte is copied and lists all problems at once: tensors that are
// missing, of the wrong shape or dtype, that nobody wants, rows of a parameter filled twice or never. Then it reads in
// file order.
//
// One per rank, used by its thread only. Destinations must outlive it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/status.h"
#include "core/place.h"
#include "weights/weight_cache.h"
#include "weights/weight_source.h"

namespace spate {

using TensorParallel = ParallelRank;  // of a rank in its tensor-parallel group

// A range of rows or columns.
struct Range {
  int64_t begin = 0;
  int64_t count = 0;
};

// Called between pieces; bytes of the source, of this rank.
using LoadProgress = std::function<void(int64_t bytes_done, int64_t bytes_total)>;

class WeightLoader {
 public:
  // Without a device only verify() may be called.
  explicit WeightLoader(Device* device) : device_(device) {}

  // Rows `rows` x columns `columns` of the tensor `name` [full_rows, full_columns] go to rows dst_row .. of matrix
  // dst_matrix of `weight`. With full_matrices the tensor is [full_matrices, full_rows, full_columns], and the rows are
  // those of its matrix src_matrix; several slices may then share it.
  struct MatrixSlice {
    std::string name;
    int64_t full_rows = 0, full_columns = 0;
    Range rows, columns;
    PackedWeight* weight = nullptr;
    int64_t dst_row = 0;
    int64_t dst_matrix = 0;
    int64_t full_matrices = 0, src_matrix = 0;
    bool is_transposed = false;  // column j of the slice becomes row dst_row + j: the weight has rows.count columns
    bool shares_tensor = false;  // other slices may name the same tensor, as they may with full_matrices

    int64_t dst_rows() const { return is_transposed ? columns.count : rows.count; }
    int64_t dst_columns() const { return is_transposed ? rows.count : columns.count; }
  };
  void add(MatrixSlice slice);
  // Elements `range` of the tensor `name` [full_size] go to elements dst .. of the device vector [n] (kF32 or kBf16).
  struct VectorSlice {
    std::string name;
    int64_t full_size = 0;
    Range range;
    Tensor vector;
    int64_t dst = 0;
    float dummy_value = 0;  // of every element with dummy weights: 1 for norms
    bool is_row = false;    // the tensor is [1, full_size]
  };
  void add(VectorSlice slice);
  // Rows that no checkpoint fills (padding of a vocabulary shard): zeros.
  void add_zero_rows(PackedWeight* weight, Range rows);
  // A tensor that may be there and is not used. `pattern` may begin with '*': any prefix; or end with it: any suffix.
  void ignore(std::string pattern) { ignored_.push_back(std::move(pattern)); }

  // All problems in one message, or ok.
  Status verify(const WeightSource& source) const;
  // Where cache.dir is set and the device has a packed_layout(): weights that were kept are mapped and only vectors are
  // read; others are kept afterwards.
  Status load(const WeightSource& source, const LoadProgress& progress = {}, const WeightCacheOptions& cache = {});
  // Seeded random matrices, quantised where the weight is integer (standard deviation 0.02, the usual initializer_range); the same values for any
  // tensor-parallel size. About the speed of pack_rows: values are windows into one random block, so rows may repeat.
  Status load_dummy(uint64_t seed, const LoadProgress& progress = {});

 private:
  bool is_ignored(const std::string& name) const;
  std::vector<std::string> coverage_problems() const;
  void log_skipped(const WeightSource& source) const;
  Status pack_zero_rows();
  Status fill_all(const WeightSource& source, bool has_matrices, const LoadProgress& progress);
  std::vector<PackedWeight*> weights() const;  // each once
  std::string cache_key(const WeightSource& source, const std::vector<PackedWeight*>& weights) const;
  static bool map_kept(const WeightCache& cache, const std::string& key, const std::vector<PackedWeight*>& weights);
  std::optional<std::string> cut_group(const TensorEntry& entry, const MatrixSlice& slice) const;
  Status fill(const WeightSource& source, const TensorEntry& entry, const MatrixSlice& slice);
  Status fill_transposed(const WeightSource& source, const TensorEntry& entry, const MatrixSlice& slice);
  Status fill_quantized(const WeightSource& source, const TensorEntry& entry, const MatrixSlice& slice);
  Status fill(const WeightSource& source, const TensorEntry& entry, const VectorSlice& slice);
  Status copy_vector(const Tensor& values, const Tensor& dst);

  struct ZeroRows {
    PackedWeight* weight = nullptr;
    Range rows;
  };
  Device* device_;
  std::vector<MatrixSlice> matrices_;
  std::vector<VectorSlice> vectors_;
  std::vector<ZeroRows> zero_rows_;
  std::vector<std::string> ignored_;
};

}  // namespace spate
