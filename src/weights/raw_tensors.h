// Safetensors files as tests write them: the bytes of each tensor under any dtype and shape, also wrong ones.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "weights/safetensors.h"

namespace spate {

struct RawTensor {
  std::string dtype_name;
  std::vector<int64_t> shape;
  std::string bytes;
};
using RawTensors = std::map<std::string, RawTensor>;

inline RawTensors read_tensors(const std::filesystem::path& folder) {
  const Checkpoint checkpoint = Checkpoint::open(folder).value();
  RawTensors tensors;
  for (const TensorEntry& entry : checkpoint.entries()) {
    tensors[entry.name] = {entry.dtype_name, entry.shape, std::string(checkpoint.bytes(entry))};
  }
  return tensors;
}

inline void write_tensors(const RawTensors& tensors, const std::filesystem::path& file) {
  std::string header = "{", data;
  for (const auto& [name, tensor] : tensors) {
    header += fmt::format(R"({}"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                          header.size() > 1 ? "," : "", name, tensor.dtype_name, fmt::join(tensor.shape, ","),
                          data.size(), data.size() + tensor.bytes.size());
    data += tensor.bytes;
  }
  header += "}";
  const uint64_t size = header.size();
  std::ofstream(file, std::ios::binary) << std::string_view(reinterpret_cast<const char*>(&size), 8) << header << data;
}

inline std::string bytes_of(const Tensor& tensor) {
  return std::string(static_cast<const char*>(tensor.raw()), static_cast<size_t>(tensor.num_bytes()));
}

}  // namespace spate
