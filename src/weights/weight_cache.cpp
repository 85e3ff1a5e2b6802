#include "weights/weight_cache.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <ctime>

#include "base/log.h"

namespace spate {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSuffix = ".spatepack";
constexpr int64_t kSecondNs = 1'000'000'000;

int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * kSecondNs + now.tv_nsec;
}

// File systems count in ticks of up to 10 ms, those that keep no fractions in up to two seconds. A change in the tick
// of the last one does not show.
bool is_settled(const FileStamp& stamp) {
  const bool is_coarse = stamp.changed_ns % kSecondNs == 0;
  return now_ns() - stamp.changed_ns > (is_coarse ? 2 * kSecondNs : kSecondNs / 20);
}

// Of the file that holds this code, be it the program or a library: another version may pack otherwise.
FileStamp program_stamp() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&program_stamp), &info) == 0 || info.dli_fname == nullptr) return {};
  const FileStamp stamp = FileStamp::of(info.dli_fname);
  return stamp.size > 0 ? stamp : FileStamp::of("/proc/self/exe");  // started by a name without its folder
}

uint64_t hash_of(const std::string& text) {
  uint64_t hash = 1469598103934665603ull;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211ull;
  return hash;
}

struct KeptFile {
  fs::path path;
  uint64_t bytes = 0;
  fs::file_time_type used;
};

// The finished ones. Unfinished ones go whose writer was killed, and those that nobody has written to for an hour.
std::vector<KeptFile> kept_files(const fs::path& dir) {
  std::vector<KeptFile> files;
  std::error_code error;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    const fs::path& path = it->path();
    const bool is_finished = path.extension() == kSuffix;
    const bool is_unfinished = path.stem().extension() == kSuffix;
    if ((!is_finished && !is_unfinished) || !it->is_regular_file(ignored) || it->is_symlink(ignored)) continue;
    const KeptFile file{.path = path, .bytes = it->file_size(ignored), .used = it->last_write_time(ignored)};
    if (ignored) continue;  // gone meanwhile
    if (is_finished) {
      files.push_back(file);
    } else if (PackedFile::is_abandoned(path) || fs::file_time_type::clock::now() - file.used > std::chrono::hours(1)) {
      fs::remove(path, ignored);
    }
  }
  return files;
}

}  // namespace

std::string WeightCache::source_key(const WeightSource& source) {
  const std::vector<SourceFile> files = source.files();
  if (files.empty()) return {};
  const FileStamp program = program_stamp();
  if (program.size == 0) return {};
  std::string key = fmt::format("program {} {}\nlayout {}\n", program.size, program.modified_ns, source.layout());
  for (const auto& [path, stamp] : files) {
    if (!is_settled(stamp)) return {};
    key += fmt::format("file {} {} {} {} {}\n", path.filename().string(), stamp.inode, stamp.size, stamp.modified_ns,
                       stamp.changed_ns);
  }
  return key;
}

bool WeightCache::is_unchanged(const WeightSource& source) {
  return std::ranges::all_of(source.files(),
                             [](const SourceFile& file) { return FileStamp::of(file.path) == file.stamp; });
}

fs::path WeightCache::path_of(const std::string& key) const {
  return fs::path(options_.dir) / fmt::format("{:016x}{}", hash_of(key), kSuffix);
}

std::shared_ptr<const PackedFile> WeightCache::find(const std::string& key,
                                                    const std::vector<size_t>& region_bytes) const {
  const fs::path path = path_of(key);
  Result<std::shared_ptr<const PackedFile>> file = PackedFile::open(path, key, region_bytes);
  if (file.ok()) {
    ::utimensat(AT_FDCWD, path.c_str(), nullptr, 0);  // used now; a folder that cannot be written to may still be read
    const uint64_t bytes = PackedFile::file_bytes(key, region_bytes);
    make_room(path, bytes);
    if (bytes > static_cast<uint64_t>(options_.max_bytes)) {
      std::error_code error;
      if (fs::remove(path, error)) {
        log_warning("weights",
                    "--weight-cache: {} has {} bytes, --weight-cache-limit is {}: used once more, and removed",
                    path.string(), bytes, options_.max_bytes);
      }
    }
    return std::move(file).value();
  }
  if (file.status().code() != StatusCode::kNotFound) {
    log_warning("weights", "--weight-cache: {}; the weights are packed again", file.status().message());
  }
  return nullptr;
}

void WeightCache::make_room(const fs::path& for_file, uint64_t bytes) const {
  std::vector<KeptFile> files = kept_files(options_.dir);
  std::erase_if(files, [&](const KeptFile& file) { return file.path == for_file; });  // it stays, or is replaced
  std::ranges::sort(files, {}, &KeptFile::used);
  // Weights that do not fit alone do not stay.
  const auto max_bytes = static_cast<uint64_t>(options_.max_bytes);
  uint64_t total = bytes > max_bytes ? 0 : bytes;
  for (const KeptFile& file : files) total += file.bytes;
  for (const KeptFile& file : files) {
    if (total <= max_bytes) break;
    std::error_code ignored;  // who maps it keeps it
    fs::remove(file.path, ignored);
    total -= file.bytes;
  }
}

void WeightCache::store(const std::string& key, const std::vector<Region>& regions) const {
  const fs::path path = path_of(key);
  std::vector<size_t> region_bytes;
  for (const Region region : regions) region_bytes.push_back(region.size());
  const uint64_t bytes = PackedFile::file_bytes(key, region_bytes);
  const auto write = [&]() -> Status {
    std::error_code error;
    fs::create_directories(options_.dir, error);
    if (error) return resource_exhausted("{}: {}", options_.dir, error.message());
    const auto max_bytes = static_cast<uint64_t>(options_.max_bytes);
    if (bytes > max_bytes) {  // others need not go for it
      return resource_exhausted("these weights take {} bytes, --weight-cache-limit is {}", bytes, max_bytes);
    }
    make_room(path, bytes);
    return PackedFile::write(path, key, regions);
  };
  const Status status = write();
  if (status.ok()) {
    log_info("weights", "--weight-cache: kept {} bytes of packed weights in {}", bytes, path.string());
  } else {
    log_warning("weights", "--weight-cache: the packed weights are not kept: {}", status.message());
  }
}

}  // namespace spate
