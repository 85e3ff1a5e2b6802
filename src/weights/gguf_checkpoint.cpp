#include "weights/gguf_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <tuple>

#include "weights/gguf/gguf_blocks.h"
#include "weights/gguf/gguf_path.h"
#include "weights/gguf_names.h"
#include "weights/problem_list.h"

namespace spate {
namespace {

constexpr uint64_t kMaxElements = uint64_t{1} << 40;

constexpr uint64_t kMaxMatrices = 1 << 16;  // of a stack

// The tensors of a file lie in the order of its table, each at the first aligned byte behind the one before, and the
// last one ends the file. A type, a shape or an offset that was changed breaks this order, mostly without leaving the
// file.
class TableCheck {
 public:
  TableCheck(const GgufFile& file, uint64_t file_bytes)
      : alignment_(file.alignment()), data_bytes_(file_bytes - file.data_start()) {}

  void add(const GgufTensorInfo& info, uint64_t num_bytes, std::vector<std::string>& problems) {
    if (is_stopped_) return;
    if (info.offset != next_offset_) {
      problems.push_back(
          previous_.empty()
              ? fmt::format("{} is at offset {}, needs 0: it is the first", info.name, info.offset)
              : fmt::format("{} is at offset {}, but {} before it ends at {}: the type, the shape or the offset of one "
                            "of them is wrong",
                            info.name, info.offset, previous_, end_));
    }
    previous_ = info.name;
    end_ = info.offset + num_bytes;  // no overflow: inside of the file
    next_offset_ = (end_ + alignment_ - 1) / alignment_ * alignment_;
  }
  // The next offset is not known.
  void stop() { is_stopped_ = true; }
  void finish(std::vector<std::string>& problems) const {
    if (is_stopped_ || previous_.empty() || data_bytes_ <= next_offset_) return;
    problems.push_back(
        fmt::format("{}, the last tensor, ends at offset {}, but {} bytes follow: its type or shape is "
                    "wrong",
                    previous_, end_, data_bytes_ - end_));
  }

 private:
  uint64_t alignment_, data_bytes_;
  std::string_view previous_;
  uint64_t end_ = 0, next_offset_ = 0;
  bool is_stopped_ = false;
};

// A part that was renamed would be read as another one, or as a whole.
Status check_part(const GgufFile& file, int64_t part_idx, int64_t num_parts) {
  if (file.find("split.count") == nullptr) return ok_status();
  ASSIGN_OR_RETURN(const int64_t count, file.get_int("split.count"));
  if (count <= 1 && num_parts == 1) return ok_status();
  ASSIGN_OR_RETURN(const int64_t idx, file.get_int("split.no"));
  if (count == num_parts && idx == part_idx) return ok_status();
  return data_loss("split.no {} and split.count {} make it part {} of {}, its name part {} of {}; give it its own name back",
                   idx, count, idx + 1, count, part_idx + 1, num_parts);
}

bool is_readable(const GgufTensorInfo& info) {
  const GgufFormat* format = find_gguf_format(info.ggml_type);
  return format != nullptr && format->block_bytes > 0;
}

}  // namespace

Result<std::unique_ptr<GgufCheckpoint>> GgufCheckpoint::open(const std::filesystem::path& path) {
  std::unique_ptr<GgufCheckpoint> self(new GgufCheckpoint());
  const std::vector<std::filesystem::path> files = gguf_files(path);
  for (const auto& file : files) {
    ASSIGN_OR_RETURN(MappedFile mapping, MappedFile::open(file));
    Result<GgufFile> parsed = GgufFile::parse(mapping.bytes());
    if (!parsed.ok()) return parsed.status().with_context(file.string());
    const Status part = check_part(*parsed, std::ssize(self->files_), std::ssize(files));
    if (!part.ok()) return part.with_context(file.string());
    self->bytes_.push_back(mapping.bytes());
    self->source_files_.push_back({file, mapping.stamp()});
    self->mappings_.push_back(std::move(mapping));
    self->files_.push_back(std::move(parsed).value());
    self->file_names_.push_back(file.filename().string());
  }
  if (const Status status = self->read_tensors(); !status.ok()) return status.with_context(path.string());
  return self;
}

Result<std::unique_ptr<GgufCheckpoint>> GgufCheckpoint::parse(const std::vector<std::string_view>& files) {
  std::unique_ptr<GgufCheckpoint> self(new GgufCheckpoint());
  for (const std::string_view bytes : files) {
    ASSIGN_OR_RETURN(GgufFile file, GgufFile::parse(bytes));
    self->file_names_.push_back(fmt::format("file {}", self->files_.size()));
    self->bytes_.push_back(bytes);
    self->files_.push_back(std::move(file));
  }
  RETURN_IF_ERROR(self->read_tensors());
  return self;
}

Status GgufCheckpoint::read_tensors() {
  std::vector<std::string> problems;
  std::map<std::string, std::vector<std::string_view>> unreadable;  // tensors by format
  std::vector<std::pair<TensorEntry, Place>> found;
  const Result<std::string_view> named = files_[0].get_string("general.architecture");
  const std::string_view architecture = named.ok() ? *named : "";
  for (size_t i = 0; i < files_.size(); ++i) {
    TableCheck table(files_[i], bytes_[i].size());
    for (const GgufTensorInfo& info : files_[i].tensors()) {
      Place place;
      if (!is_readable(info)) {
        unreadable[gguf_format_name(info.ggml_type)].push_back(info.name);
        table.stop();
        continue;
      }
      const GgufTensorName name = hugging_face_name(info.name, architecture);
      Result<TensorEntry> entry = read_tensor(info, static_cast<int>(i), name, place);
      if (entry.ok()) table.add(info, entry->num_bytes, problems);
      if (!entry.ok()) {
        problems.push_back(entry.status().message());
      } else if (info.name == "rope_freqs.weight") {
        rope_factors_.resize(static_cast<size_t>(entry->num_elements()));
        if (entry->dtype != DType::kF32)
          problems.push_back("rope_freqs.weight is not F32");
        else
          std::memcpy(rope_factors_.data(), bytes_[i].data() + entry->offset, entry->num_bytes);
      } else {
        add_shown(*entry, name, place, found);
      }
      if (!problems.empty()) table.stop();
    }
    table.finish(problems);
  }
  for (const auto& [format, names] : unreadable) {
    problems.push_back(names.size() == 1
                           ? fmt::format("{} is {}; read are {}", names[0], format, readable_gguf_formats())
                           : fmt::format("{} and {} more are {}; read are {}", names[0], names.size() - 1, format,
                                         readable_gguf_formats()));
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return std::tie(a.first.file_idx, a.first.offset) < std::tie(b.first.file_idx, b.first.offset);
  });
  for (auto& [entry, place] : found) {
    if (!index_.emplace(entry.name, entries_.size()).second) problems.push_back(entry.name + " is there twice");
    entries_.push_back(std::move(entry));
    places_.push_back(place);
  }
  if (entries_.empty() && problems.empty()) problems.push_back("it has no tensors: a vocabulary alone");
  if (problems.empty()) return ok_status();
  return data_loss("the tensors cannot be read, {}", list_problems(std::move(problems)));
}

// As the file has it, under the first of its names.
Result<TensorEntry> GgufCheckpoint::read_tensor(const GgufTensorInfo& info, int file_idx, const GgufTensorName& name,
                                                Place& place) const {
  TensorEntry entry{.name = name.names[0], .dtype_name = gguf_format_name(info.ggml_type)};
  place.format = find_gguf_format(info.ggml_type);
  entry.dtype = place.format->dtype;
  entry.quantized = place.format->spec;
  if (name.is_stack ? info.dims.size() != 3 : info.dims.empty() || info.dims.size() > 2) {
    return data_loss("{} has {} dimensions, needs {}", info.name, info.dims.size(), name.is_stack ? "3" : "1 or 2");
  }
  uint64_t elements = 1;
  for (const uint64_t dim : info.dims) {
    if (dim == 0 || __builtin_mul_overflow(elements, dim, &elements) || elements > kMaxElements) {
      return data_loss("{} is [{}]: no size of a tensor", info.name, fmt::join(info.dims, ", "));
    }
  }
  entry.shape.assign(info.dims.rbegin(), info.dims.rend());  // GGUF has the innermost first
  if (name.is_stack && (info.dims[2] > kMaxMatrices || info.dims[1] % name.names.size() != 0)) {
    return data_loss("{} is [{}]: no {} matrices of {}", info.name, fmt::join(info.dims, ", "), info.dims[2],
                     name.names.size() == 1 ? "whole rows" : "two equal parts");
  }
  if (entry.quantized && entry.shape.size() == 1) {
    return data_loss("{} is a vector of {}, needs F32, F16 or BF16", info.name, entry.dtype_name);
  }
  const int64_t width = entry.shape.size() > 1 ? entry.shape.back() : 1;
  if (width % place.format->block_size != 0) {
    return data_loss("{}: rows of {} are no whole blocks of {} ({})", info.name, width, place.format->block_size,
                     entry.dtype_name);
  }
  place.row_bytes = width / place.format->block_size * place.format->block_bytes;
  entry.file_idx = file_idx;
  entry.num_bytes = static_cast<uint64_t>(entry.num_rows() * place.row_bytes);
  const GgufFile& file = files_[static_cast<size_t>(file_idx)];
  const uint64_t file_bytes = bytes_[static_cast<size_t>(file_idx)].size();
  entry.offset = file.data_start() + info.offset;  // no overflow: GgufFile has checked that it is in the file
  if (entry.num_bytes > file_bytes - entry.offset) {
    return data_loss("{}: {} bytes from byte {}, the file has {}; is it complete?", info.name, entry.num_bytes,
                     entry.offset, file_bytes);
  }
  const bool is_q = entry.name.find(".self_attn.q_proj.") != std::string::npos;
  const bool is_k = entry.name.find(".self_attn.k_proj.") != std::string::npos;
  const Result<std::string_view> architecture = files_[0].get_string("general.architecture");
  if ((is_q || is_k) && architecture.ok() && *architecture == "llama") {
    const bool shares_heads = is_k && files_[0].find("llama.attention.head_count_kv") != nullptr;
    ASSIGN_OR_RETURN(place.num_heads,
                     files_[0].get_int(shares_heads ? "llama.attention.head_count_kv" : "llama.attention.head_count"));
    if (place.num_heads < 1 || entry.shape[0] % (2 * place.num_heads) != 0) {
      return data_loss("{}: {} rows are no {} heads of even width", info.name, entry.shape[0], place.num_heads);
    }
  }
  return entry;
}

// A tensor that was read, or each matrix of a stack.
void GgufCheckpoint::add_shown(const TensorEntry& whole, const GgufTensorName& name, Place place,
                               std::vector<std::pair<TensorEntry, Place>>& shown) {
  TensorEntry entry = whole;
  if (!name.is_stack) {
    if (name.is_row && entry.shape.size() == 1) {
      place.row_bytes *= entry.shape[0];
      entry.shape.insert(entry.shape.begin(), 1);
    }
    shown.emplace_back(std::move(entry), place);
    return;
  }
  const int64_t rows = whole.shape[1] / static_cast<int64_t>(name.names.size());
  entry.shape = {rows, whole.shape[2]};
  entry.is_optional = name.is_of_heads;
  entry.num_bytes = static_cast<uint64_t>(rows * place.row_bytes);
  for (int64_t i = 0; i < whole.shape[0]; ++i) {
    for (const std::string& pattern : name.names) {
      entry.name = name_of_matrix(pattern, i);
      shown.emplace_back(entry, place);
      entry.offset += entry.num_bytes;
    }
  }
}

const TensorEntry* GgufCheckpoint::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &entries_[found->second];
}

const GgufCheckpoint::Place& GgufCheckpoint::place_of(const TensorEntry& entry) const {
  const auto found = index_.find(entry.name);
  CHECK(found != index_.end(), "no tensor {}", entry.name);
  return places_[found->second];
}

const char* GgufCheckpoint::row_data(const TensorEntry& entry, const Place& place, int64_t row) const {
  if (place.num_heads > 0) {
    // (half, pair) of a head lies at (pair, half).
    const int64_t head_dim = entry.shape[0] / place.num_heads, in_head = row % head_dim;
    row = row - in_head + in_head % (head_dim / 2) * 2 + in_head / (head_dim / 2);
  }
  return bytes_[static_cast<size_t>(entry.file_idx)].data() + entry.offset + row * place.row_bytes;
}

Result<Tensor> GgufCheckpoint::rows(const TensorEntry& entry, int64_t begin, int64_t end, HostTensor& scratch) const {
  const Place& place = place_of(entry);
  if (!entry.dtype) return invalid_argument("tensor {} is {}, needs F32, F16 or BF16", entry.name, entry.dtype_name);
  CHECK(0 <= begin && begin <= end && end <= entry.shape[0], "rows [{}, {}) of {} {}", begin, end, entry.name,
        entry.shape_string());
  std::vector<int64_t> dims = entry.shape;
  dims[0] = end - begin;
  const char* data = row_data(entry, place, begin);
  const bool is_aligned = reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(dtype_bytes(*entry.dtype)) == 0;
  if (place.num_heads == 0 && is_aligned) {
    return Tensor(const_cast<char*>(data), *entry.dtype, dims);  // read only; Tensor has no const elements
  }
  scratch = HostTensor(*entry.dtype, dims);
  char* out = static_cast<char*>(scratch.view().raw());
  for (int64_t row = begin; row < end; ++row) {
    std::memcpy(out + (row - begin) * place.row_bytes, row_data(entry, place, row),
                static_cast<size_t>(place.row_bytes));
  }
  return scratch.view();
}

Result<QuantizedHostRows> GgufCheckpoint::quantized_rows(const TensorEntry& entry, int64_t begin, int64_t end) const {
  const Place& place = place_of(entry);
  CHECK(entry.quantized && 0 <= begin && begin <= end && end <= entry.shape[0], "rows [{}, {}) of {} {}", begin, end,
        entry.name, entry.shape_string());
  const int64_t in_features = entry.shape[1], groups = entry.quantized->num_groups(in_features);
  QuantizedHostRows out(*entry.quantized, end - begin, in_features);
  const QuantizedRows& view = out.view();
  for (int64_t i = 0; i < end - begin; ++i) {
    float* scales = view.scales.data<float>() + i * groups;
    float* offsets = view.offsets.defined() ? view.offsets.data<float>() + i * groups : nullptr;
    decode_gguf_row(*place.format, row_data(entry, place, begin + i), in_features,
                    view.codes.data<int8_t>() + i * in_features, scales, offsets);
    for (int64_t g = 0; g < groups; ++g) {
      if (std::isfinite(scales[g]) && (offsets == nullptr || std::isfinite(offsets[g]))) continue;
      return data_loss("{}: the scale of row {}, columns {} to {} is no number, or beyond 65504", entry.name, begin + i,
                       g * 32, g * 32 + 31);
    }
  }
  return out;
}

void GgufCheckpoint::release(const TensorEntry& entry, int64_t begin, int64_t end) const {
  if (mappings_.empty()) return;
  // Interleaved rows of a head reach as far as the head.
  const Place& place = place_of(entry);
  const int64_t multiple = place.num_heads == 0 ? 1 : entry.shape[0] / place.num_heads;
  const uint64_t row_bytes = static_cast<uint64_t>(place.row_bytes);
  mappings_[static_cast<size_t>(entry.file_idx)].drop_pages(
      entry.offset + static_cast<uint64_t>(begin / multiple * multiple) * row_bytes,
      entry.offset + static_cast<uint64_t>((end + multiple - 1) / multiple * multiple) * row_bytes);
}

}  // namespace spate
