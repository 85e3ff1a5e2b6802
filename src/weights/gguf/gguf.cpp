#include "weights/gguf/gguf.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <type_traits>

namespace spate {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint32_t kMaxDims = 8;  // ggml has 4
constexpr int kMaxArrayDepth = 4;
constexpr uint64_t kMaxAlignment = 1 << 20;

size_t size_of(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool:
      return 1;
    case GgufType::kUint16:
    case GgufType::kInt16:
      return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32:
      return 4;
    case GgufType::kUint64:
    case GgufType::kInt64:
    case GgufType::kFloat64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      break;
  }
  return 0;
}

template <typename T>
T load(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

// Reads forward; every read is checked against the end.
class Cursor {
 public:
  explicit Cursor(std::string_view bytes) : bytes_(bytes) {}
  size_t pos() const { return pos_; }
  size_t remaining() const { return bytes_.size() - pos_; }

  Result<std::string_view> take(uint64_t size, std::string_view what) {
    if (size > remaining()) {
      return data_loss("gguf: {} needs {} bytes at {}, the file ends at {}", what, size, pos_, bytes_.size());
    }
    const std::string_view taken = bytes_.substr(pos_, size);
    pos_ += size;
    return taken;
  }
  template <typename T>
  Result<T> number(std::string_view what) {
    ASSIGN_OR_RETURN(const std::string_view bytes, take(sizeof(T), what));
    return load<T>(bytes.data());
  }
  Result<std::string_view> string(std::string_view what) {
    ASSIGN_OR_RETURN(const uint64_t size, number<uint64_t>(what));
    return take(size, what);
  }

 private:
  std::string_view bytes_;
  size_t pos_ = 0;
};

Result<GgufType> read_type(Cursor& cursor, std::string_view key) {
  ASSIGN_OR_RETURN(const uint32_t type, cursor.number<uint32_t>(key));
  if (type > static_cast<uint32_t>(GgufType::kFloat64)) return data_loss("gguf: '{}' has unknown type {}", key, type);
  return static_cast<GgufType>(type);
}

// Calls fn(tag of the C++ type) for a number type.
template <typename Fn>
auto with_number_type(GgufType type, Fn&& fn) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kBool:
      return fn(std::type_identity<uint8_t>{});
    case GgufType::kInt8:
      return fn(std::type_identity<int8_t>{});
    case GgufType::kUint16:
      return fn(std::type_identity<uint16_t>{});
    case GgufType::kInt16:
      return fn(std::type_identity<int16_t>{});
    case GgufType::kUint32:
      return fn(std::type_identity<uint32_t>{});
    case GgufType::kInt32:
      return fn(std::type_identity<int32_t>{});
    case GgufType::kFloat32:
      return fn(std::type_identity<float>{});
    case GgufType::kUint64:
      return fn(std::type_identity<uint64_t>{});
    case GgufType::kInt64:
      return fn(std::type_identity<int64_t>{});
    case GgufType::kFloat64:
    case GgufType::kString:
    case GgufType::kArray:
      break;
  }
  return fn(std::type_identity<double>{});
}

Result<GgufArray> read_array(Cursor& cursor, std::string_view key, int depth) {
  if (depth >= kMaxArrayDepth) return data_loss("gguf: '{}' nests arrays more than {} deep", key, kMaxArrayDepth);
  GgufArray array;
  ASSIGN_OR_RETURN(array.element_type, read_type(cursor, key));
  ASSIGN_OR_RETURN(array.count, cursor.number<uint64_t>(key));
  // The smallest element, an empty string or array, takes 8 bytes: what a count can be before anything is allocated.
  const size_t element_bytes = size_of(array.element_type);
  const size_t min_element_bytes = element_bytes == 0 ? 8 : element_bytes;
  if (array.count > cursor.remaining() / min_element_bytes) {
    return data_loss("gguf: '{}' has {} elements, only {} bytes are left", key, array.count, cursor.remaining());
  }
  if (element_bytes > 0) {
    ASSIGN_OR_RETURN(array.bytes, cursor.take(array.count * element_bytes, key));
    return array;
  }
  for (uint64_t i = 0; i < array.count; ++i) {
    if (array.element_type == GgufType::kString) {
      ASSIGN_OR_RETURN(const std::string_view text, cursor.string(key));
      array.strings.push_back(text);
    } else {
      RETURN_IF_ERROR(read_array(cursor, key, depth + 1).status());
    }
  }
  return array;
}

Result<GgufValue> read_value(Cursor& cursor, std::string_view key) {
  ASSIGN_OR_RETURN(const GgufType type, read_type(cursor, key));
  if (type == GgufType::kString) {
    ASSIGN_OR_RETURN(const std::string_view text, cursor.string(key));
    return GgufValue(text);
  }
  if (type == GgufType::kArray) {
    ASSIGN_OR_RETURN(GgufArray array, read_array(cursor, key, 0));
    return GgufValue(std::move(array));
  }
  ASSIGN_OR_RETURN(const std::string_view bytes, cursor.take(size_of(type), key));
  if (type == GgufType::kBool) return GgufValue(bytes[0] != 0);
  return with_number_type(type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T number = load<T>(bytes.data());
    if constexpr (std::is_floating_point_v<T>)
      return GgufValue(static_cast<double>(number));
    else if constexpr (std::is_signed_v<T>)
      return GgufValue(static_cast<int64_t>(number));
    else
      return GgufValue(static_cast<uint64_t>(number));
  });
}

Result<GgufTensorInfo> read_tensor_info(Cursor& cursor) {
  GgufTensorInfo info;
  ASSIGN_OR_RETURN(info.name, cursor.string("tensor name"));
  ASSIGN_OR_RETURN(const uint32_t num_dims, cursor.number<uint32_t>(info.name));
  if (num_dims > kMaxDims) return data_loss("gguf: tensor '{}' has {} dims; at most {}", info.name, num_dims, kMaxDims);
  for (uint32_t i = 0; i < num_dims; ++i) {
    ASSIGN_OR_RETURN(const uint64_t dim, cursor.number<uint64_t>(info.name));
    info.dims.push_back(dim);
  }
  ASSIGN_OR_RETURN(info.ggml_type, cursor.number<uint32_t>(info.name));
  ASSIGN_OR_RETURN(info.offset, cursor.number<uint64_t>(info.name));
  return info;
}

}  // namespace

class GgufFile::Mapping {
 public:
  Mapping(void* data, size_t size) : data_(data), size_(size) {}
  ~Mapping() { munmap(data_, size_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::string_view bytes() const { return {static_cast<const char*>(data_), size_}; }

 private:
  void* data_;
  size_t size_;
};

Result<GgufFile> GgufFile::open(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return not_found("{}: {}", path.string(), std::strerror(errno));
  struct stat info = {};
  void* data = MAP_FAILED;
  if (fstat(fd, &info) == 0 && info.st_size > 0) {
    data = mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
  }
  close(fd);
  if (data == MAP_FAILED) return data_loss("{}: empty, or it cannot be mapped", path.string());
  auto mapping = std::make_shared<const Mapping>(data, static_cast<size_t>(info.st_size));
  Result<GgufFile> file = parse(mapping->bytes());
  if (!file.ok()) return file.status().with_context(path.string());
  file->mapping_ = std::move(mapping);
  return file;
}

Result<GgufFile> GgufFile::parse(std::string_view bytes) {
  GgufFile file;
  RETURN_IF_ERROR(file.read(bytes));
  return file;
}

Status GgufFile::read(std::string_view bytes) {
  Cursor cursor(bytes);
  ASSIGN_OR_RETURN(const std::string_view magic, cursor.take(4, "magic"));
  if (magic != "GGUF") return data_loss("gguf: the file does not begin with GGUF");
  ASSIGN_OR_RETURN(version_, cursor.number<uint32_t>("version"));
  if (version_ != 2 && version_ != 3) return unimplemented("gguf: version {}; 2 and 3 are read", version_);
  ASSIGN_OR_RETURN(const uint64_t num_tensors, cursor.number<uint64_t>("tensor count"));
  ASSIGN_OR_RETURN(const uint64_t num_values, cursor.number<uint64_t>("key count"));
  for (uint64_t i = 0; i < num_values; ++i) {
    Entry entry;
    ASSIGN_OR_RETURN(entry.key, cursor.string("key"));
    ASSIGN_OR_RETURN(entry.value, read_value(cursor, entry.key));
    values_.push_back(std::move(entry));
  }
  std::stable_sort(values_.begin(), values_.end(), [](const Entry& a, const Entry& b) { return a.key < b.key; });
  const auto twice =
      std::adjacent_find(values_.begin(), values_.end(), [](const Entry& a, const Entry& b) { return a.key == b.key; });
  if (twice != values_.end()) return data_loss("gguf: key '{}' twice", twice->key);
  if (find("general.alignment") != nullptr) {
    ASSIGN_OR_RETURN(const int64_t alignment, get_int("general.alignment"));
    if (alignment <= 0 || !std::has_single_bit(static_cast<uint64_t>(alignment)) ||
        static_cast<uint64_t>(alignment) > kMaxAlignment) {
      return data_loss("gguf: general.alignment {} is no power of two up to {}", alignment, kMaxAlignment);
    }
    alignment_ = static_cast<uint64_t>(alignment);
  }
  for (uint64_t i = 0; i < num_tensors; ++i) {
    ASSIGN_OR_RETURN(GgufTensorInfo info, read_tensor_info(cursor));
    if (info.offset % alignment_ != 0) {
      return data_loss("gguf: tensor '{}' at offset {}, not a multiple of {}", info.name, info.offset, alignment_);
    }
    tensors_.push_back(std::move(info));
  }
  // A file of a vocabulary alone may end right behind its header.
  data_start_ = std::min<uint64_t>((cursor.pos() + alignment_ - 1) / alignment_ * alignment_, bytes.size());
  for (const GgufTensorInfo& info : tensors_) {
    if (info.offset > bytes.size() - data_start_) {
      return data_loss("gguf: tensor '{}' begins at byte {} + {}, the file has {}", info.name, data_start_, info.offset,
                       bytes.size());
    }
  }
  return ok_status();
}

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto it = std::lower_bound(values_.begin(), values_.end(), key,
                                   [](const Entry& entry, std::string_view k) { return entry.key < k; });
  return it != values_.end() && it->key == key ? &it->value : nullptr;
}

Result<std::string_view> GgufFile::get_string(std::string_view key) const {
  const GgufValue* value = find(key);
  const auto* text = value == nullptr ? nullptr : std::get_if<std::string_view>(value);
  if (text == nullptr) return data_loss("gguf: a string '{}' is needed", key);
  return *text;
}

Result<int64_t> GgufFile::get_int(std::string_view key) const {
  if (const GgufValue* value = find(key)) {
    if (const auto* number = std::get_if<int64_t>(value)) return *number;
    if (const auto* number = std::get_if<uint64_t>(value); number != nullptr && *number <= INT64_MAX) {
      return static_cast<int64_t>(*number);
    }
  }
  return data_loss("gguf: a whole number '{}' is needed", key);
}

Result<bool> GgufFile::get_bool(std::string_view key) const {
  const GgufValue* value = find(key);
  const auto* flag = value == nullptr ? nullptr : std::get_if<bool>(value);
  if (flag == nullptr) return data_loss("gguf: a boolean '{}' is needed", key);
  return *flag;
}

Result<const GgufArray*> GgufFile::get_array(std::string_view key) const {
  const GgufValue* value = find(key);
  const auto* array = value == nullptr ? nullptr : std::get_if<GgufArray>(value);
  if (array == nullptr) return data_loss("gguf: an array '{}' is needed", key);
  return array;
}

Result<std::vector<std::string_view>> GgufFile::get_strings(std::string_view key) const {
  ASSIGN_OR_RETURN(const GgufArray* array, get_array(key));
  if (array->element_type != GgufType::kString) return data_loss("gguf: '{}' must be an array of strings", key);
  return array->strings;
}

Result<std::vector<int64_t>> GgufFile::get_ints(std::string_view key) const {
  ASSIGN_OR_RETURN(const GgufArray* array, get_array(key));
  const GgufType type = array->element_type;
  if (size_of(type) == 0 || type == GgufType::kFloat32 || type == GgufType::kFloat64) {
    return data_loss("gguf: '{}' must be an array of whole numbers", key);
  }
  std::vector<int64_t> numbers;
  numbers.reserve(array->count);
  with_number_type(type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (uint64_t i = 0; i < array->count; ++i) {
      numbers.push_back(static_cast<int64_t>(load<T>(array->bytes.data() + i * sizeof(T))));
    }
  });
  return numbers;
}

Result<std::vector<float>> GgufFile::get_floats(std::string_view key) const {
  ASSIGN_OR_RETURN(const GgufArray* array, get_array(key));
  if (array->element_type != GgufType::kFloat32) return data_loss("gguf: '{}' must be an array of float32", key);
  std::vector<float> numbers(array->count);
  if (array->count > 0) std::memcpy(numbers.data(), array->bytes.data(), array->bytes.size());
  return numbers;
}

}  // namespace spate
