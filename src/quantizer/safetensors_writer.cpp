#include "quantizer/safetensors_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"

namespace spate {
namespace {

Status write_at(int file, const std::filesystem::path& path, int64_t offset, const void* data, int64_t num_bytes) {
  const char* bytes = static_cast<const char*>(data);
  while (num_bytes > 0) {
    const ssize_t n = ::pwrite(file, bytes, static_cast<size_t>(num_bytes), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return resource_exhausted("{}: cannot be written: {}", path.string(), std::strerror(errno));
    bytes += n;
    offset += n;
    num_bytes -= n;
  }
  return ok_status();
}

}  // namespace

Status SafetensorsWriter::create_file(const std::filesystem::path& path,
                                      const std::vector<const PlannedTensor*>& tensors) {
  nlohmann::ordered_json header = {{"__metadata__", {{"format", "pt"}}}};
  int64_t end = 0;
  for (const PlannedTensor* tensor : tensors) {
    header[tensor->name] = {
        {"dtype", tensor->dtype_name}, {"shape", tensor->shape}, {"data_offsets", {end, end + tensor->num_bytes}}};
    end += tensor->num_bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t header_bytes = text.size();
  const int64_t data_begin = static_cast<int64_t>(8 + header_bytes);
  int64_t offset = data_begin;
  for (const PlannedTensor* tensor : tensors) {
    const bool is_new =
        places_
            .emplace(tensor->name, Place{.file_idx = files_.size(), .offset = offset, .num_bytes = tensor->num_bytes})
            .second;
    CHECK(is_new, "{} is planned twice", tensor->name);
    offset += tensor->num_bytes;
  }
  const int file = ::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
  if (file < 0) return resource_exhausted("{}: cannot be made: {}", path.string(), std::strerror(errno));
  files_.push_back(file);
  file_names_.push_back(path.filename().string());
  RETURN_IF_ERROR(write_at(file, path, 0, &header_bytes, 8));
  return write_at(file, path, 8, text.data(), static_cast<int64_t>(text.size()));
}

Result<SafetensorsWriter> SafetensorsWriter::create(const std::filesystem::path& dir,
                                                    std::vector<PlannedTensor> tensors, int64_t max_shard_bytes) {
  std::vector<std::vector<const PlannedTensor*>> shards(1);
  int64_t shard_bytes = 0;
  for (const PlannedTensor& tensor : tensors) {
    if (!shards.back().empty() && shard_bytes + tensor.num_bytes > max_shard_bytes) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shards.back().push_back(&tensor);
    shard_bytes += tensor.num_bytes;
  }
  SafetensorsWriter writer;
  writer.dir_ = dir;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shards.size() == 1 ? "model.safetensors"
                                                : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    RETURN_IF_ERROR(writer.create_file(dir / name, shards[i]));
  }
  return writer;
}

SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&& other) noexcept
    : dir_(std::move(other.dir_)),
      file_names_(std::move(other.file_names_)),
      files_(std::exchange(other.files_, {})),
      places_(std::move(other.places_)) {}

SafetensorsWriter::~SafetensorsWriter() {
  for (const int file : files_) ::close(file);
}

Status SafetensorsWriter::write(const std::string& name, int64_t offset, const void* bytes, int64_t num_bytes) {
  const auto found = places_.find(name);
  CHECK(found != places_.end(), "{} is not planned", name);
  Place& place = found->second;
  CHECK(offset >= 0 && offset + num_bytes <= place.num_bytes, "{}: bytes [{}, {}) of {}", name, offset,
        offset + num_bytes, place.num_bytes);
  place.num_written += num_bytes;
  return write_at(files_[place.file_idx], dir_ / file_names_[place.file_idx], place.offset + offset, bytes, num_bytes);
}

Status SafetensorsWriter::finish() {
  nlohmann::ordered_json index = {{"metadata", {{"total_size", 0}}}, {"weight_map", nlohmann::ordered_json::object()}};
  int64_t total = 0;
  for (const auto& [name, place] : places_) {
    CHECK(place.num_written == place.num_bytes, "{}: {} of {} bytes are written", name, place.num_written,
          place.num_bytes);
    total += place.num_bytes;
    index["weight_map"][name] = file_names_[place.file_idx];
  }
  index["metadata"]["total_size"] = total;
  for (size_t i = 0; i < files_.size(); ++i) {
    if (::fsync(files_[i]) != 0) {
      return resource_exhausted("{}: cannot be written: {}", (dir_ / file_names_[i]).string(), std::strerror(errno));
    }
  }
  if (files_.size() == 1) return ok_status();
  const std::filesystem::path path = dir_ / "model.safetensors.index.json";
  std::ofstream out(path);
  out << index.dump(2) << "\n";
  if (!out.flush()) return resource_exhausted("{}: cannot be written", path.string());
  return ok_status();
}

}  // namespace spate
