#include "weights/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <simdjson.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "weights/file_text.h"

namespace spate {
namespace {

struct FormatDType {
  std::string_view name;
  int bytes;
  std::optional<DType> dtype;
};
constexpr FormatDType kFormatDTypes[] = {
    {"BF16", 2, DType::kBf16},
    {"F16", 2, DType::kF16},
    {"F32", 4, DType::kF32},
    {"F64", 8, DType::kF64},
    {"I8", 1, DType::kI8},
    {"U8", 1, DType::kU8},
    {"I32", 4, DType::kI32},
    {"I64", 8, DType::kI64},
    {"BOOL", 1, {}},
    {"I16", 2, {}},
    {"U16", 2, {}},
    {"U32", 4, {}},
    {"U64", 8, {}},
    {"F8_E4M3", 1, {}},
    {"F8_E5M2", 1, {}},
    {"F8_E8M0", 1, {}},
};
constexpr size_t kMaxRank = 8;

// A name as it may be printed: hostile headers hold anything.
std::string printable(std::string_view name) {
  std::string text;
  for (const char c : name.substr(0, 80)) text += (c >= ' ' && c < 127) ? c : '?';
  return text + (name.size() > 80 ? "..." : "");
}

// dims and dtype -> bytes; false when that overflows.
bool tensor_bytes(const std::vector<int64_t>& shape, int element_bytes, uint64_t& bytes) {
  bytes = static_cast<uint64_t>(element_bytes);
  for (const int64_t dim : shape) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(dim), &bytes) || bytes > (uint64_t{1} << 62)) return false;
  }
  return true;
}

Status parse_entry(std::string_view name, simdjson::dom::element value, uint64_t data_start, uint64_t data_bytes,
                   TensorEntry& entry) {
  entry.name = name;
  std::string_view dtype_name;
  if (value["dtype"].get(dtype_name) != simdjson::SUCCESS) return data_loss("no dtype");
  entry.dtype_name = printable(dtype_name);
  const auto* format = std::find_if(std::begin(kFormatDTypes), std::end(kFormatDTypes),
                                    [&](const FormatDType& f) { return f.name == dtype_name; });
  if (format == std::end(kFormatDTypes)) return data_loss("dtype {} is not known", entry.dtype_name);
  entry.dtype = format->dtype;

  simdjson::dom::array shape, offsets;
  if (value["shape"].get(shape) != simdjson::SUCCESS) return data_loss("no shape");
  for (const simdjson::dom::element dim : shape) {
    int64_t size = 0;
    if (dim.get(size) != simdjson::SUCCESS || size < 0) return data_loss("shape has an entry that is no size");
    if (entry.shape.size() == kMaxRank) return data_loss("more than {} dimensions", kMaxRank);
    entry.shape.push_back(size);
  }
  uint64_t range[2] = {};
  if (value["data_offsets"].get(offsets) != simdjson::SUCCESS || offsets.size() != 2 ||
      offsets.at(0).get(range[0]) != simdjson::SUCCESS || offsets.at(1).get(range[1]) != simdjson::SUCCESS) {
    return data_loss("data_offsets are not two offsets");
  }
  if (range[0] > range[1] || range[1] > data_bytes) {
    return data_loss("data_offsets [{}, {}) are outside of the {} bytes of data; is the file complete?", range[0],
                     range[1], data_bytes);
  }
  uint64_t bytes = 0;
  if (!tensor_bytes(entry.shape, format->bytes, bytes) || bytes != range[1] - range[0]) {
    return data_loss("{} {} does not fill data_offsets [{}, {})", entry.dtype_name, entry.shape_string(), range[0],
                     range[1]);
  }
  entry.offset = data_start + range[0];
  entry.num_bytes = bytes;
  return ok_status();
}

// Sorted entries must tile [data_start, file_bytes).
Status check_tiling(const std::vector<TensorEntry>& entries, uint64_t data_start, uint64_t file_bytes) {
  uint64_t end = data_start;
  for (const TensorEntry& entry : entries) {
    if (entry.offset < end) return data_loss("tensor {} overlaps the one before it", printable(entry.name));
    if (entry.offset > end)
      return data_loss("{} bytes before tensor {} belong to no tensor", entry.offset - end, printable(entry.name));
    end = entry.offset + entry.num_bytes;
  }
  if (end != file_bytes) return data_loss("the file has {} bytes, its tensors end at byte {}", file_bytes, end);
  return ok_status();
}

bool by_place(const TensorEntry& a, const TensorEntry& b) {
  return std::tie(a.file_idx, a.offset, a.num_bytes) < std::tie(b.file_idx, b.offset, b.num_bytes);
}

struct CheckpointFiles {
  std::vector<std::string> names;
  std::vector<std::pair<std::string, std::string>> index;  // tensor -> file, as the index says; empty without one
};

Result<CheckpointFiles> read_index(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(const std::string text, read_text_file(path, int64_t{256} << 20));
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  simdjson::dom::object weight_map;
  if (parser.parse(text).get(root) != simdjson::SUCCESS || root["weight_map"].get(weight_map) != simdjson::SUCCESS) {
    return data_loss("{}: not a JSON object with a weight_map", path.string());
  }
  CheckpointFiles files;
  std::set<std::string> names;
  for (const auto& [tensor, value] : weight_map) {
    std::string_view file;
    if (value.get(file) != simdjson::SUCCESS || file.empty() || file.find('/') != file.npos || file[0] == '.') {
      return data_loss("{}: weight_map of {} is not a file name", path.string(), printable(tensor));
    }
    names.emplace(file);
    files.index.emplace_back(tensor, file);
  }
  files.names.assign(names.begin(), names.end());
  return files;
}

Result<CheckpointFiles> find_files(const std::filesystem::path& dir) {
  std::error_code error;
  const auto index = dir / "model.safetensors.index.json";
  if (std::filesystem::exists(index, error)) return read_index(index);
  CheckpointFiles files;
  if (std::filesystem::exists(dir / "model.safetensors", error)) {
    files.names.push_back("model.safetensors");
    return files;
  }
  std::filesystem::directory_iterator file(dir, error);
  for (; !error && file != std::filesystem::directory_iterator(); file.increment(error)) {
    if (file->path().extension() == ".safetensors") files.names.push_back(file->path().filename().string());
  }
  if (error) return not_found("{}: {}", dir.string(), error.message());
  std::sort(files.names.begin(), files.names.end());
  return files;
}

// transformers' LlamaModel and its like save the decoder without the "model." of LlamaForCausalLM.
bool is_bare_decoder(const std::vector<TensorEntry>& entries) {
  bool has_embedding = false;
  for (const TensorEntry& entry : entries) {
    if (entry.name.starts_with("model.")) return false;
    has_embedding = has_embedding || entry.name == "embed_tokens.weight";
  }
  return has_embedding;
}

std::string prefixed(const std::string& name) {
  for (const std::string_view part : {"embed_tokens.", "layers.", "norm."}) {
    if (name.starts_with(part)) return "model." + name;
  }
  return name;
}

void add_prefix(std::vector<TensorEntry>& entries) {
  for (TensorEntry& entry : entries) entry.name = prefixed(entry.name);
}

}  // namespace

std::string TensorEntry::shape_string() const { return fmt::format("[{}]", fmt::join(shape, ", ")); }

Result<std::vector<TensorEntry>> parse_safetensors_header(std::string_view file_start, uint64_t file_bytes) {
  if (file_bytes < 8 || file_start.size() < 8) return data_loss("{} bytes are too few for a header", file_bytes);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file_start.data(), 8);
  if (header_bytes > kMaxSafetensorsHeaderBytes) {
    return data_loss("the header claims {} bytes, at most {} are allowed; not a safetensors file?", header_bytes,
                     kMaxSafetensorsHeaderBytes);
  }
  if (header_bytes > file_bytes - 8 || header_bytes > file_start.size() - 8) {
    return data_loss("the header claims {} bytes, the file has {}; is it complete?", header_bytes, file_bytes);
  }
  const uint64_t data_start = 8 + header_bytes;
  simdjson::dom::parser parser;
  simdjson::dom::object header;
  const auto error = parser.parse(file_start.data() + 8, header_bytes).get(header);
  if (error != simdjson::SUCCESS)
    return data_loss("the header is not a JSON object: {}", simdjson::error_message(error));

  std::vector<TensorEntry> entries;
  std::set<std::string_view> names;
  for (const auto& [name, value] : header) {
    if (!names.insert(name).second) return data_loss("tensor {} is listed twice", printable(name));
    if (name == "__metadata__") continue;
    const Status status = parse_entry(name, value, data_start, file_bytes - data_start, entries.emplace_back());
    if (!status.ok()) return status.with_context(fmt::format("tensor {}", printable(name)));
  }
  std::sort(entries.begin(), entries.end(), by_place);
  RETURN_IF_ERROR(check_tiling(entries, data_start, file_bytes));
  return entries;
}

namespace {

int64_t nanoseconds(const timespec& time) { return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; }

FileStamp stamp_of(const struct stat& info) {
  return {.inode = info.st_ino,
          .size = static_cast<uint64_t>(info.st_size),
          .modified_ns = nanoseconds(info.st_mtim),
          .changed_ns = nanoseconds(info.st_ctim)};
}

}  // namespace

FileStamp FileStamp::of(const std::filesystem::path& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 ? stamp_of(info) : FileStamp();
}

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return not_found("{}: {}", path.string(), std::strerror(errno));
  struct stat info {};
  MappedFile file;
  Status status;
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    status = data_loss("{}: not a regular file", path.string());
  } else if (info.st_size == 0) {
    status = data_loss("{}: the file is empty", path.string());
  } else {
    void* data = ::mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) {
      status = resource_exhausted("{}: mmap of {} bytes: {}", path.string(), info.st_size, std::strerror(errno));
    } else {
      file.data_ = static_cast<const char*>(data);
      file.size_ = static_cast<size_t>(info.st_size);
      file.stamp_ = stamp_of(info);
      ::madvise(data, file.size_, MADV_SEQUENTIAL);
    }
  }
  ::close(fd);
  if (!status.ok()) return status;
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)), stamp_(other.stamp_) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(stamp_, other.stamp_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<char*>(data_), size_);
}

void MappedFile::prefetch(uint64_t begin, uint64_t end) const {
  const uint64_t page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  begin = begin / page * page;
  end = std::min<uint64_t>(end, size_);
  if (begin < end) ::madvise(const_cast<char*>(data_) + begin, end - begin, MADV_WILLNEED);
}

void MappedFile::drop_pages(uint64_t begin, uint64_t end) const {
  const uint64_t page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  begin = begin / page * page;
  // The last page is shared with what follows, except at the end of the file.
  end = end == size_ ? (end + page - 1) / page * page : end / page * page;
  if (begin < end) ::madvise(const_cast<char*>(data_) + begin, end - begin, MADV_DONTNEED);
}

Result<Checkpoint> Checkpoint::open(const std::filesystem::path& path) {
  std::error_code error;
  const bool is_dir = std::filesystem::is_directory(path, error);
  const std::filesystem::path dir = is_dir ? path : path.parent_path();
  CheckpointFiles files{.names = {path.filename().string()}, .index = {}};
  if (is_dir) {
    ASSIGN_OR_RETURN(files, find_files(dir));
  }
  if (files.names.empty()) {
    return not_found("{}: no *.safetensors file; --load-format dummy runs without weights", dir.string());
  }
  Checkpoint checkpoint;
  for (const std::string& name : files.names) {
    ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(dir / name));
    auto entries = parse_safetensors_header(file.bytes(), file.bytes().size());
    if (!entries.ok()) return entries.status().with_context((dir / name).string());
    for (TensorEntry& entry : *entries) {
      entry.file_idx = static_cast<int>(checkpoint.files_.size());
      checkpoint.entries_.push_back(std::move(entry));
    }
    checkpoint.source_files_.push_back({dir / name, file.stamp()});
    checkpoint.files_.push_back(std::move(file));
    checkpoint.file_names_.push_back(name);
  }
  // They say how codes are read (weights/quantization_config.h).
  for (const char* name : {"config.json", "quantize_config.json", "quant_config.json"}) {
    checkpoint.source_files_.push_back({dir / name, FileStamp::of(dir / name)});
  }
  const bool adds_prefix = is_bare_decoder(checkpoint.entries_);
  if (adds_prefix) add_prefix(checkpoint.entries_);
  for (size_t i = 0; i < checkpoint.entries_.size(); ++i) {
    const TensorEntry& entry = checkpoint.entries_[i];
    const auto [other, inserted] = checkpoint.index_.emplace(entry.name, i);
    if (inserted) continue;
    return data_loss("{}: tensor {} is in {} and in {}", dir.string(), printable(entry.name),
                     checkpoint.file_name(checkpoint.entries_[other->second].file_idx),
                     checkpoint.file_name(entry.file_idx));
  }
  for (const auto& [tensor, file] : files.index) {
    const TensorEntry* entry = checkpoint.find(adds_prefix ? prefixed(tensor) : tensor);
    if (entry != nullptr && checkpoint.file_name(entry->file_idx) == file) continue;
    return data_loss("{}: model.safetensors.index.json puts tensor {} into {}, which does not have it", dir.string(),
                     printable(tensor), file);
  }
  return checkpoint;
}

const TensorEntry* Checkpoint::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &entries_[found->second];
}

namespace {

// Bytes of one row: one element when the tensor has rank 1.
uint64_t row_bytes(const TensorEntry& entry) {
  const int64_t rows = entry.num_rows();
  return rows == 0 ? 0 : entry.num_bytes / static_cast<uint64_t>(rows);
}

}  // namespace

Result<Tensor> Checkpoint::rows(const TensorEntry& entry, int64_t begin, int64_t end, HostTensor& scratch) const {
  const bool computable = entry.dtype == DType::kBf16 || entry.dtype == DType::kF16 || entry.dtype == DType::kF32;
  if (!computable || entry.shape.empty() || entry.shape.size() > 3) {
    return invalid_argument("{}: tensor {} is {} {}, needs BF16, F16 or F32 with one to three dimensions",
                            file_name(entry.file_idx), entry.name, entry.dtype_name, entry.shape_string());
  }
  CHECK(0 <= begin && begin <= end && end <= entry.num_rows(), "rows [{}, {}) of {} {}", begin, end, entry.name,
        entry.shape_string());
  std::vector<int64_t> dims = entry.shape;
  if (dims.size() == 3) dims.erase(dims.begin());
  dims[0] = end - begin;
  const MappedFile& file = files_[static_cast<size_t>(entry.file_idx)];
  const uint64_t offset = entry.offset + static_cast<uint64_t>(begin) * row_bytes(entry);
  const uint64_t num_bytes = static_cast<uint64_t>(end - begin) * row_bytes(entry);
  file.prefetch(offset, offset + 2 * num_bytes);  // and as much after it: the disk reads while this piece is packed
  const char* data = file.bytes().data() + offset;
  if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(dtype_bytes(*entry.dtype)) == 0) {
    return Tensor(const_cast<char*>(data), *entry.dtype, dims);  // read only; Tensor has no const elements
  }
  scratch = HostTensor(*entry.dtype, dims);
  std::memcpy(scratch.view().raw(), data, static_cast<size_t>(scratch.view().num_bytes()));
  return scratch.view();
}

void Checkpoint::release(const TensorEntry& entry, int64_t begin, int64_t end) const {
  const uint64_t bytes = row_bytes(entry);
  files_[static_cast<size_t>(entry.file_idx)].drop_pages(entry.offset + static_cast<uint64_t>(begin) * bytes,
                                                         entry.offset + static_cast<uint64_t>(end) * bytes);
}

}  // namespace spate
