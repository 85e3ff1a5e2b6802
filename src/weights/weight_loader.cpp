#include "weights/weight_loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "base/rng.h"
#include "weights/problem_list.h"

namespace spate {

Result<QuantizedHostRows> WeightSource::quantized_rows(const TensorEntry& entry, int64_t, int64_t) const {
  CHECK(false, "{}: {} holds no codes", entry.name, file_name(entry.file_idx));
}

namespace {

// Rows are handed to pack_rows in pieces of about this size, then their pages go: it bounds the memory of a load.
constexpr int64_t kPieceBytes = 8 << 20;
constexpr int64_t kPieceRowMultiple = 256;  // back-ends pack in groups of rows; whole groups avoid a slow edge

int64_t rows_per_piece(int64_t row_bytes) {
  const int64_t rows = kPieceBytes / std::max<int64_t>(row_bytes, 1);
  return std::max(rows / kPieceRowMultiple * kPieceRowMultiple, kPieceRowMultiple);
}

bool matches(const std::string& pattern, const std::string& name) {
  const std::string_view text = pattern;
  if (text.starts_with('*')) return std::string_view(name).ends_with(text.substr(1));
  if (text.ends_with('*')) return std::string_view(name).starts_with(text.substr(0, text.size() - 1));
  return name == pattern;
}

float float_at(const Tensor& values, int64_t i) {
  switch (values.dtype()) {
    case DType::kF32:
      return values.data<float>()[i];
    case DType::kBf16:
      return values.data<Bf16>()[i].to_float();
    case DType::kF16:
      return values.data<F16>()[i].to_float();
    default:
      break;
  }
  CHECK(false, "a parameter is {}", dtype_name(values.dtype()));
  return 0;
}

// Which rows of one destination are filled, as they are declared.
struct Coverage {
  std::string name;  // of one of its tensors
  int64_t size = 0;
  std::vector<Range> ranges;
};

void check_coverage(Coverage& coverage, std::vector<std::string>& problems) {
  std::sort(coverage.ranges.begin(), coverage.ranges.end(), [](Range a, Range b) { return a.begin < b.begin; });
  int64_t end = 0;
  for (const Range& range : coverage.ranges) {
    if (range.begin != end) {
      problems.push_back(fmt::format("the parameter of {}: rows [{}, {}) are filled {}", coverage.name,
                                     std::min(end, range.begin), std::max(end, range.begin),
                                     range.begin < end ? "twice" : "never"));
    }
    end = std::max(end, range.begin + range.count);
  }
  if (end == coverage.size) return;
  problems.push_back(
      fmt::format("the parameter of {}: {} rows are filled, it has {}", coverage.name, end, coverage.size));
}

// Of a row of the checkpoint's tensor.
RowPlace place_of(const WeightLoader::MatrixSlice& slice, int64_t row) {
  return {.row = slice.dst_row + row - slice.rows.begin, .matrix_idx = slice.dst_matrix};
}

std::vector<int64_t> shape_of(const WeightLoader::MatrixSlice& slice) {
  if (slice.full_matrices > 0) return {slice.full_matrices, slice.full_rows, slice.full_columns};
  return {slice.full_rows, slice.full_columns};
}
std::vector<int64_t> shape_of(const WeightLoader::VectorSlice& slice) {
  if (slice.is_row) return {1, slice.full_size};
  return {slice.full_size};
}

// Random rows without generating each: windows into one block of random values. A window depends on the tensor's name,
// the seed and the row, never on the shard.
class DummyRows {
 public:
  static constexpr int64_t kWindowRows = 256;  // enough for a back-end to pack with all its threads

  DummyRows(uint64_t seed, int64_t max_columns) : seed_(seed), columns_(max_columns) {
    block_ = HostTensor(DType::kBf16, {kSpread + kWindowRows * max_columns});
    const auto values = block_.span<Bf16>();
    Rng rng(seed, 0x64756d6d79);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = i < kPeriod ? Bf16::from_float(rng.gaussian() * 0.02f) : values[i - kPeriod];
    }
  }

  // Rows [begin, end) of tensor `name` with `columns` columns; all in one window of kWindowRows.
  Tensor rows(std::string_view name, int64_t begin, int64_t end, int64_t columns) const {
    CHECK(columns <= columns_ && begin / kWindowRows == (end - 1) / kWindowRows, "rows [{}, {}) of {}", begin, end,
          name);
    uint64_t hash = 1469598103934665603ull;
    for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211ull;
    const auto random = philox4x32(seed_, hash, static_cast<uint64_t>(begin / kWindowRows));
    const int64_t start = static_cast<int64_t>(random[0] % kSpread);
    Bf16* data = block_.span<Bf16>().data() + start + begin % kWindowRows * columns;
    return Tensor(data, DType::kBf16, {end - begin, columns});
  }

 private:
  static constexpr int64_t kSpread = 1 << 20;
  static constexpr size_t kPeriod = 999983;  // a prime: no two rows of a window are equal unless columns is a multiple
  uint64_t seed_;
  int64_t columns_;
  HostTensor block_;
};

// Row i of `rows` becomes column first_column + i of `out`, which is f32.
void put_transposed(const Tensor& rows, int64_t first_column, const Tensor& out) {
  for (int64_t i = 0; i < rows.dim(0); ++i) {
    const Bf16* row = rows.data<Bf16>() + i * rows.stride(0);
    for (int64_t j = 0; j < rows.dim(1); ++j)
      out.data<float>()[j * out.stride(0) + first_column + i] = row[j].to_float();
  }
}

}  // namespace

void WeightLoader::add(MatrixSlice slice) {
  CHECK(slice.weight != nullptr && slice.weight->desc().in_features == slice.dst_columns(), "{} has {} columns",
        slice.name, slice.dst_columns());
  matrices_.push_back(std::move(slice));
}

void WeightLoader::add(VectorSlice slice) { vectors_.push_back(std::move(slice)); }

void WeightLoader::add_zero_rows(PackedWeight* weight, Range rows) {
  if (rows.count > 0) zero_rows_.push_back({weight, rows});
}

bool WeightLoader::is_ignored(const std::string& name) const {
  return std::any_of(ignored_.begin(), ignored_.end(),
                     [&](const std::string& pattern) { return matches(pattern, name); });
}

std::optional<std::string> WeightLoader::cut_group(const TensorEntry& entry, const MatrixSlice& slice) const {
  const int64_t group = entry.quantized->tile.columns, end = slice.columns.begin + slice.columns.count;
  if (group == 0 || (slice.columns.begin % group == 0 && (end % group == 0 || end == slice.full_columns))) return {};
  return fmt::format("{}: columns [{}, {}) of a rank cut a group of {}; use a smaller --tensor-parallel-size",
                     slice.name, slice.columns.begin, end, group);
}

std::vector<std::string> WeightLoader::coverage_problems() const {
  std::map<std::pair<const void*, int64_t>, Coverage> coverage;  // of each matrix or vector
  for (const MatrixSlice& slice : matrices_) {
    const WeightDesc& desc = slice.weight->desc();
    for (int64_t i = 0; i < desc.num_matrices; ++i) {
      Coverage& of = coverage[{slice.weight, i}];
      of.size = desc.out_features;
      if (of.name.empty() || i == slice.dst_matrix) of.name = slice.name;
    }
    Coverage& of = coverage[{slice.weight, slice.dst_matrix}];
    of.ranges.push_back({slice.dst_row, slice.dst_rows()});
  }
  for (const ZeroRows& zero : zero_rows_) {
    Coverage& of = coverage[{zero.weight, 0}];
    of.size = zero.weight->desc().out_features;
    of.ranges.push_back(zero.rows);
  }
  for (const VectorSlice& slice : vectors_) {
    if (slice.vector.raw() == nullptr) continue;  // declared without a device: one vector is not told from another
    Coverage& of = coverage[{slice.vector.raw(), 0}];
    of.name = slice.name;
    of.size = slice.vector.dim(0);
    of.ranges.push_back({slice.dst, slice.range.count});
  }
  std::vector<std::string> problems;
  for (auto& [destination, of] : coverage) check_coverage(of, problems);
  return problems;
}

Status WeightLoader::verify(const WeightSource& source) const {
  std::vector<std::string> problems = coverage_problems();
  std::set<std::string_view> wanted;
  const auto check = [&](const std::string& name, const std::vector<int64_t>& shape, bool may_share = false) {
    if (!wanted.insert(name).second) {
      if (!may_share) problems.push_back(fmt::format("{} is declared twice", name));
      return;
    }
    const TensorEntry* entry = source.find(name);
    if (entry == nullptr) {
      problems.push_back(fmt::format("{} [{}] is missing", name, fmt::join(shape, ", ")));
      return;
    }
    if (entry->shape != shape) {
      problems.push_back(
          fmt::format("{} is {}, config.json makes it [{}]", name, entry->shape_string(), fmt::join(shape, ", ")));
    }
    if (entry->quantized && shape.size() == 2) return;
    if (entry->dtype != DType::kBf16 && entry->dtype != DType::kF16 && entry->dtype != DType::kF32) {
      problems.push_back(fmt::format("{} is {}, needs BF16, F16 or F32", name, entry->dtype_name));
    }
  };
  for (const MatrixSlice& slice : matrices_) {
    check(slice.name, shape_of(slice), slice.full_matrices > 0 || slice.shares_tensor);
    const TensorEntry* entry = source.find(slice.name);
    if (entry == nullptr || !entry->quantized) continue;
    if (auto problem = cut_group(*entry, slice)) problems.push_back(std::move(*problem));
  }
  for (const VectorSlice& slice : vectors_) check(slice.name, shape_of(slice));
  for (const TensorEntry& entry : source.entries()) {
    if (wanted.contains(entry.name) || entry.is_optional || is_ignored(entry.name)) continue;
    problems.push_back(fmt::format("{} {} in {} is not a parameter of this model", entry.name, entry.shape_string(),
                                   source.file_name(entry.file_idx)));
  }
  if (problems.empty()) return ok_status();
  return invalid_argument("the checkpoint does not fit config.json, {}", list_problems(std::move(problems)));
}

Status WeightLoader::copy_vector(const Tensor& values, const Tensor& dst) {
  HostTensor host(dst.dtype(), {values.dim(0)});
  for (int64_t i = 0; i < values.dim(0); ++i) {
    if (dst.dtype() == DType::kF32)
      host.span<float>()[static_cast<size_t>(i)] = float_at(values, i);
    else
      host.span<Bf16>()[static_cast<size_t>(i)] = Bf16::from_float(float_at(values, i));
  }
  const auto stream = device_->create_stream();
  device_->copy_to_device(*stream, dst.raw(), host.view().raw(), static_cast<size_t>(host.view().num_bytes()));
  device_->synchronize(*stream);
  return ok_status();
}

Status WeightLoader::pack_zero_rows() {
  for (const ZeroRows& zero : zero_rows_) {
    const HostTensor rows(DType::kBf16, {zero.rows.count, zero.weight->desc().in_features});
    RETURN_IF_ERROR(device_->pack_rows(*zero.weight, {.row = zero.rows.begin}, rows));
  }
  return ok_status();
}

// All at once: such a slice is what one head has of a matrix.
Status WeightLoader::fill_transposed(const WeightSource& source, const TensorEntry& entry, const MatrixSlice& slice) {
  const int64_t begin = slice.rows.begin, end = begin + slice.rows.count;
  HostTensor floats(DType::kF32, {slice.rows.count, slice.full_columns}), scratch;
  if (entry.quantized) {
    ASSIGN_OR_RETURN(const QuantizedHostRows rows, source.quantized_rows(entry, begin, end));
    floats = dequantize_rows(rows.view());
  } else {
    ASSIGN_OR_RETURN(const Tensor rows, source.rows(entry, begin, end, scratch));
    for (int64_t i = 0; i < slice.rows.count; ++i) {
      row_to_float(rows, i, floats.span<float>().data() + i * slice.full_columns);
    }
  }
  HostTensor transposed(DType::kF32, {slice.columns.count, slice.rows.count});
  for (int64_t i = 0; i < slice.rows.count; ++i) {
    for (int64_t j = 0; j < slice.columns.count; ++j) {
      transposed.view().data<float>()[j * slice.rows.count + i] =
          floats.view().data<float>()[i * slice.full_columns + slice.columns.begin + j];
    }
  }
  return device_->pack_rows(*slice.weight, {.row = slice.dst_row, .matrix_idx = slice.dst_matrix}, transposed);
}

Status WeightLoader::fill_quantized(const WeightSource& source, const TensorEntry& entry, const MatrixSlice& slice) {
  const WeightSpec& spec = slice.weight->desc().spec;
  const int64_t piece = rows_per_piece(slice.full_columns * 4), end = slice.rows.begin + slice.rows.count;
  for (int64_t row = slice.rows.begin; row < end; row += piece) {
    const int64_t piece_end = std::min(end, row + piece);
    const RowPlace place = place_of(slice, row);
    ASSIGN_OR_RETURN(const QuantizedHostRows rows, source.quantized_rows(entry, row, piece_end));
    const QuantizedRows columns = rows.view().columns(slice.columns.begin, slice.columns.begin + slice.columns.count);
    const int64_t first_group = columns.spec.has_groups() ? slice.columns.begin / columns.spec.tile.columns : 0;
    RETURN_IF_ERROR(check_finite(columns.scales, "the scale", row, first_group));
    if (columns.offsets.defined()) RETURN_IF_ERROR(check_finite(columns.offsets, "the offset", row, first_group));
    if (!spec.has_integer_codes()) {
      RETURN_IF_ERROR(device_->pack_rows(*slice.weight, place, dequantize_rows(columns)));
    } else if (columns.spec.stores_as(spec)) {
      RETURN_IF_ERROR(device_->pack_quantized_rows(*slice.weight, place, columns));
    } else {
      RETURN_IF_ERROR(device_->pack_quantized_rows(*slice.weight, place, convert_rows(columns, spec)));
    }
    source.release(entry, row, piece_end);
  }
  return ok_status();
}

Status WeightLoader::fill(const WeightSource& source, const TensorEntry& entry, const MatrixSlice& slice) {
  if (slice.is_transposed) return fill_transposed(source, entry, slice);
  if (entry.quantized) return fill_quantized(source, entry, slice);
  const int64_t piece = rows_per_piece(slice.full_columns * dtype_bytes(*entry.dtype));
  const int64_t first = slice.src_matrix * slice.full_rows;  // of the matrix in its tensor
  const int64_t end = slice.rows.begin + slice.rows.count;
  HostTensor scratch;
  for (int64_t row = slice.rows.begin; row < end; row += piece) {
    const int64_t piece_end = std::min(end, row + piece);
    ASSIGN_OR_RETURN(const Tensor rows, source.rows(entry, first + row, first + piece_end, scratch));
    const Tensor columns = rows.columns(slice.columns.begin, slice.columns.begin + slice.columns.count);
    if (slice.weight->desc().spec.has_integer_codes()) {
      RETURN_IF_ERROR(check_finite(columns, "the element", row, slice.columns.begin));
    }
    RETURN_IF_ERROR(device_->pack_rows(*slice.weight, place_of(slice, row), columns));
    source.release(entry, first + row, first + piece_end);
  }
  return ok_status();
}

Status WeightLoader::fill(const WeightSource& source, const TensorEntry& entry, const VectorSlice& slice) {
  HostTensor scratch;
  const int64_t begin = slice.range.begin, end = begin + slice.range.count;
  const Tensor dst = slice.vector.rows(slice.dst, slice.dst + slice.range.count);
  if (slice.is_row) {
    ASSIGN_OR_RETURN(const Tensor row, source.rows(entry, 0, 1, scratch));
    return copy_vector(row.reshaped({slice.full_size}).rows(begin, end), dst);
  }
  ASSIGN_OR_RETURN(const Tensor values, source.rows(entry, begin, end, scratch));
  return copy_vector(values, dst);
}

// Groups of tensors that are left out are said; single ones (constants of old files) are not.
void WeightLoader::log_skipped(const WeightSource& source) const {
  for (const std::string& pattern : ignored_) {
    if (!pattern.ends_with('*')) continue;
    const auto count = std::count_if(source.entries().begin(), source.entries().end(),
                                     [&](const TensorEntry& entry) { return matches(pattern, entry.name); });
    if (count > 0) log_info("weights", "{}: {} tensors are not used by this version", pattern, count);
  }
}

std::vector<PackedWeight*> WeightLoader::weights() const {
  std::vector<PackedWeight*> all;
  std::set<PackedWeight*> seen;
  for (const MatrixSlice& slice : matrices_) {
    if (seen.insert(slice.weight).second) all.push_back(slice.weight);
  }
  return all;
}

// Whatever decides a bit of a packed weight stands here.
std::string WeightLoader::cache_key(const WeightSource& source, const std::vector<PackedWeight*>& weights) const {
  if (device_->packed_layout().empty()) return {};
  std::string key = WeightCache::source_key(source);
  if (key.empty()) return {};
  key += fmt::format("device {}\n", device_->packed_layout());
  std::map<const PackedWeight*, size_t> number;
  for (const PackedWeight* weight : weights) {
    const WeightDesc& desc = weight->desc();
    key += fmt::format("weight {} [{}, {}] x {} {}\n", number.size(), desc.out_features, desc.in_features,
                       desc.num_matrices, weight_spec_name(desc.spec));
    number.emplace(weight, number.size());
  }
  for (const MatrixSlice& slice : matrices_) {
    const TensorEntry* entry = source.find(slice.name);
    key += fmt::format("slice {} {} {} of {}: {} x [{}, {}], matrix {}, rows {}+{}, columns {}+{}{} to {} row {} matrix {}\n",
                       slice.name, entry->dtype_name, entry->quantized ? weight_spec_name(*entry->quantized) : "-",
                       entry->offset, slice.full_matrices, slice.full_rows, slice.full_columns, slice.src_matrix,
                       slice.rows.begin, slice.rows.count, slice.columns.begin, slice.columns.count,
                       slice.is_transposed ? " transposed" : "", number.at(slice.weight), slice.dst_row,
                       slice.dst_matrix);
  }
  for (const ZeroRows& zero : zero_rows_) {
    key += fmt::format("zeros {} row {}+{}\n", number.at(zero.weight), zero.rows.begin, zero.rows.count);
  }
  return key;
}

bool WeightLoader::map_kept(const WeightCache& cache, const std::string& key,
                            const std::vector<PackedWeight*>& weights) {
  std::vector<size_t> region_bytes;
  for (const PackedWeight* weight : weights) region_bytes.push_back(weight->bytes());
  const std::shared_ptr<const PackedFile> kept = cache.find(key, region_bytes);
  if (kept == nullptr) return false;
  for (size_t i = 0; i < weights.size(); ++i) {
    *weights[i] = PackedWeight(weights[i]->desc(), kept->region(i), kept);
  }
  return true;
}

Status WeightLoader::load(const WeightSource& source, const LoadProgress& progress, const WeightCacheOptions& options) {
  RETURN_IF_ERROR(verify(source));
  log_skipped(source);
  const std::vector<PackedWeight*> all = weights();
  const std::string key = options.dir.empty() ? std::string() : cache_key(source, all);
  if (key.empty()) return fill_all(source, true, progress);
  const WeightCache cache(options);
  if (map_kept(cache, key, all)) return fill_all(source, false, progress);
  RETURN_IF_ERROR(fill_all(source, true, progress));
  if (!WeightCache::is_unchanged(source)) return ok_status();  // while it was read
  std::vector<Region> regions;
  for (const PackedWeight* weight : all) regions.emplace_back(static_cast<const char*>(weight->data()), weight->bytes());
  cache.store(key, regions);
  return ok_status();
}

Status WeightLoader::fill_all(const WeightSource& source, bool has_matrices, const LoadProgress& progress) {
  struct Work {
    const TensorEntry* entry;
    int64_t bytes;
    const MatrixSlice* matrix;
    const VectorSlice* vector;
  };
  std::vector<Work> work;
  int64_t bytes_total = 0, bytes_done = 0;
  for (const MatrixSlice& slice : matrices_) {
    if (!has_matrices) break;
    const TensorEntry* entry = source.find(slice.name);
    const int64_t elements = slice.rows.count * slice.columns.count;
    const int64_t bytes = entry->quantized ? weight_bytes(*entry->quantized, slice.rows.count, slice.columns.count)
                                           : elements * dtype_bytes(*entry->dtype);
    work.push_back({entry, bytes, &slice, nullptr});
  }
  for (const VectorSlice& slice : vectors_) {
    const TensorEntry* entry = source.find(slice.name);
    work.push_back({entry, slice.range.count * dtype_bytes(*entry->dtype), nullptr, &slice});
  }
  // In the order of the files, so that the disk is read forwards.
  std::stable_sort(work.begin(), work.end(), [](const Work& a, const Work& b) {
    return std::pair(a.entry->file_idx, a.entry->offset) < std::pair(b.entry->file_idx, b.entry->offset);
  });
  for (const Work& one : work) bytes_total += one.bytes;
  for (const Work& one : work) {
    const Status status = one.matrix ? fill(source, *one.entry, *one.matrix) : fill(source, *one.entry, *one.vector);
    if (!status.ok()) return status.with_context(one.entry->name);
    bytes_done += one.bytes;
    if (progress) progress(bytes_done, bytes_total);
  }
  return has_matrices ? pack_zero_rows() : ok_status();
}

Status WeightLoader::load_dummy(uint64_t seed, const LoadProgress& progress) {
  if (const auto problems = coverage_problems(); !problems.empty())
    return internal_error("{}", fmt::join(problems, "; "));
  int64_t max_columns = 1, bytes_total = 0, bytes_done = 0;
  for (const MatrixSlice& slice : matrices_) {
    max_columns = std::max({max_columns, slice.full_columns, slice.dst_columns()});
    bytes_total += slice.rows.count * slice.columns.count * 2;
  }
  const DummyRows dummy(seed, max_columns);
  for (MatrixSlice slice : matrices_) {
    if (slice.full_matrices > 0) slice.name += fmt::format(".{}", slice.src_matrix);
    const int64_t end = slice.rows.begin + slice.rows.count;
    // Another weight may hold the same numbers as they are: both forms of latent attention must compute the same.
    HostTensor transposed;
    if (slice.is_transposed) transposed = HostTensor(DType::kF32, {slice.columns.count, slice.rows.count});
    for (int64_t row = slice.rows.begin; row < end;) {
      const int64_t window_end = std::min(end, (row / DummyRows::kWindowRows + 1) * DummyRows::kWindowRows);
      const Tensor rows = dummy.rows(slice.name, row, window_end, slice.full_columns)
                              .columns(slice.columns.begin, slice.columns.begin + slice.columns.count);
      if (slice.is_transposed) {
        put_transposed(rows, row - slice.rows.begin, transposed.view());
      } else {
        RETURN_IF_ERROR(device_->pack_rows(*slice.weight, place_of(slice, row), rows));
      }
      row = window_end;
    }
    if (slice.is_transposed)
      RETURN_IF_ERROR(device_->pack_rows(*slice.weight, place_of(slice, slice.rows.begin), transposed));
    bytes_done += slice.rows.count * slice.columns.count * 2;
    if (progress) progress(bytes_done, bytes_total);
  }
  for (const VectorSlice& slice : vectors_) {
    HostTensor values(DType::kF32, {slice.range.count});
    std::fill(values.span<float>().begin(), values.span<float>().end(), slice.dummy_value);
    RETURN_IF_ERROR(copy_vector(values, slice.vector.rows(slice.dst, slice.dst + slice.range.count)));
  }
  return pack_zero_rows();
}

}  // namespace spate
