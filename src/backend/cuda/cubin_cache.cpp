#include "backend/cuda/cubin_cache.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/log.h"

namespace spate::cuda {
namespace {

// FNV-1a; two offsets give the 128 bits of a file name.
uint64_t hash_bytes(std::string_view bytes, uint64_t offset) {
  uint64_t hash = offset;
  for (const char byte : bytes) hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3u;
  return hash;
}
constexpr uint64_t kOffset = 0xcbf29ce484222325u, kSecondOffset = 0x84222325cbf29ce4u;

struct FileHeader {
  char magic[8] = {'S', 'P', 'A', 'T', 'E', 'C', 'B', '1'};
  uint64_t cubin_bytes = 0;
  uint64_t cubin_hash = 0;
};

}  // namespace

std::filesystem::path CubinCache::default_folder() {
  if (const char* folder = std::getenv("SPATE_KERNEL_CACHE"); folder != nullptr && folder[0] == '/') return folder;
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && cache[0] == '/') {
    return std::filesystem::path(cache) / "spate" / "kernels";
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && home[0] == '/') {
    return std::filesystem::path(home) / ".cache" / "spate" / "kernels";
  }
  return {};
}

std::filesystem::path CubinCache::path_of(std::string_view key) const {
  return folder_ / fmt::format("{:016x}{:016x}.cubin", hash_bytes(key, kOffset), hash_bytes(key, kSecondOffset));
}

std::optional<std::string> CubinCache::find(std::string_view key) const {
  if (folder_.empty()) return std::nullopt;
  std::ifstream in(path_of(key), std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  const std::string file = std::move(text).str();
  FileHeader header, expected;
  if (!in || file.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, file.data(), sizeof header);
  std::string cubin = file.substr(sizeof header);
  expected.cubin_bytes = cubin.size();
  expected.cubin_hash = hash_bytes(cubin, kOffset);
  if (std::memcmp(&header, &expected, sizeof header) != 0) return std::nullopt;
  return cubin;
}

void CubinCache::store(std::string_view key, std::string_view cubin) const {
  if (folder_.empty()) return;
  static std::atomic<int> counter{0};
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  std::filesystem::path partial = path_of(key);
  partial += fmt::format(".{}.{}", getpid(), counter++);
  FileHeader header;
  header.cubin_bytes = cubin.size();
  header.cubin_hash = hash_bytes(cubin, kOffset);
  std::ofstream out(partial, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&header), sizeof header);
  out.write(cubin.data(), static_cast<std::streamsize>(cubin.size()));
  out.close();
  if (out) std::filesystem::rename(partial, path_of(key), error);
  if (!out || error) {
    log_debug("cuda", "compiled kernels are not kept: {} cannot be written", folder_.string());
    std::filesystem::remove(partial, error);
  }
}

bool CubinCache::is_writable() const {
  if (folder_.empty()) return false;
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  const std::filesystem::path probe = folder_ / fmt::format("probe.{}", getpid());
  std::ofstream out(probe, std::ios::binary);
  out << std::string(4096, '\0');  // a full disk may take an empty file
  out.close();
  const bool is_written = static_cast<bool>(out);
  std::filesystem::remove(probe, error);
  return is_written;
}

}  // namespace spate::cuda
