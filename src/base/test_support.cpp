#include "base/test_support.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>
#include <vector>

namespace spate {

uint64_t test_seed() {
  const char* seed = std::getenv("SPATE_TEST_SEED");
  return seed ? std::strtoull(seed, nullptr, 10) : 17;
}

HostTensor random_tensor(Rng& rng, DType dtype, std::initializer_list<int64_t> dims, float scale) {
  HostTensor tensor(dtype, dims);
  std::vector<float> values(static_cast<size_t>(tensor.view().num_elements()));
  rng.fill_gaussian(values);
  for (float& value : values) value *= scale;
  switch (dtype) {
    case DType::kF32:
      std::ranges::copy(values, tensor.span<float>().begin());
      break;
    case DType::kBf16:
      std::ranges::transform(values, tensor.span<Bf16>().begin(), Bf16::from_float);
      break;
    case DType::kF16:
      std::ranges::transform(values, tensor.span<F16>().begin(), F16::from_float);
      break;
    default:
      CHECK(false, "random_tensor of {}", dtype_name(dtype));
  }
  return tensor;
}

HostTensor poisoned_tensor(DType dtype, std::initializer_list<int64_t> dims) {
  HostTensor tensor(dtype, dims);
  switch (dtype) {
    case DType::kF32:
      std::ranges::fill(tensor.span<float>(), std::nanf(""));
      break;
    case DType::kF64:
      std::ranges::fill(tensor.span<double>(), std::nan(""));
      break;
    case DType::kBf16:
      std::ranges::fill(tensor.span<Bf16>(), Bf16{0x7fc0});
      break;
    case DType::kF16:
      std::ranges::fill(tensor.span<F16>(), F16{0x7e00});
      break;
    case DType::kI8:
      std::ranges::fill(tensor.span<int8_t>(), std::numeric_limits<int8_t>::min());
      break;
    case DType::kU8:
      std::ranges::fill(tensor.span<uint8_t>(), uint8_t{0xee});
      break;
    case DType::kI32:
      std::ranges::fill(tensor.span<int32_t>(), std::numeric_limits<int32_t>::min());
      break;
    case DType::kI64:
      std::ranges::fill(tensor.span<int64_t>(), std::numeric_limits<int64_t>::min());
      break;
  }
  return tensor;
}

HostTensor copy_tensor(const Tensor& tensor) {
  HostTensor copy(tensor.dtype(), tensor.dims());
  const int64_t row = tensor.dim(tensor.rank() - 1);
  const int64_t bytes = row * dtype_bytes(tensor.dtype());
  char* out = static_cast<char*>(copy.view().raw());
  for (int64_t first = 0; first < tensor.num_elements(); first += row) {
    int64_t offset = 0, rest = first / row;
    for (int i = tensor.rank() - 2; i >= 0; --i) {
      offset += rest % tensor.dim(i) * tensor.stride(i);
      rest /= tensor.dim(i);
    }
    std::memcpy(out, static_cast<const char*>(tensor.raw()) + offset * dtype_bytes(tensor.dtype()),
                static_cast<size_t>(bytes));
    out += bytes;
  }
  return copy;
}

std::filesystem::path repo_root() {
  std::filesystem::path path = std::filesystem::current_path();
  while (!std::filesystem::exists(path / "src" / "base" / "status.h")) {
    CHECK(path.has_relative_path(), "tests run inside the repository");
    path = path.parent_path();
  }
  return path;
}

std::filesystem::path shared_data() {
  const std::filesystem::path path = repo_root().parent_path() / "shared" / "data";
  return std::filesystem::is_directory(path) ? path : std::filesystem::path();
}

void skip_test(const std::string& reason) { std::printf("SKIPPED %s\n", reason.c_str()); }

std::filesystem::path quantized_golden(const std::string& name) {
  return repo_root() / "test/goldens/quantized" / name;
}

std::string read_file_or_die(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  CHECK(in.good(), "cannot read {}", path.string());
  std::ostringstream text;
  text << in.rdbuf();
  return std::move(text).str();
}

void write_file_or_die(const std::filesystem::path& path, const std::string& bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream out(path, std::ios::binary);
  out << bytes;
  CHECK(out.flush().good(), "cannot write {}", path.string());
}

bool says(const Status& status, const std::string& text) { return status.message().find(text) != std::string::npos; }

TempDir::TempDir() {
  std::string name = (std::filesystem::temp_directory_path() / "spate_test_XXXXXX").string();
  CHECK(::mkdtemp(name.data()) != nullptr, "cannot make {}", name);
  path_ = name;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace spate
