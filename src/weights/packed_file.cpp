#include "weights/packed_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/cpu_cores.h"

namespace spate {
namespace {

constexpr char kMagic[8] = {'s', 'p', 'a', 't', 'e', 'p', 'k', '1'};
constexpr uint64_t kAlign = 64 << 10;              // the largest page of any CPU
constexpr uint64_t kMapAlign = uint64_t{2} << 20;  // so that the kernel can map large pages where it has them
constexpr size_t kChunkBytes = 4 << 20;            // that a thread hashes at a time
constexpr int kMaxHashThreads = 8;

uint64_t rounded_up(uint64_t value, uint64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Eight sums side by side, each a chain of steps that can be undone: a change of one word always changes the result.
// One core reads about as fast as it hashes. It guards against accidents: who may write to the folder can forge it.
uint64_t checksum(Region bytes) {
  constexpr uint64_t kFactor = 0x9e3779b97f4a7c15ull;
  constexpr size_t kLanes = 8, kStep = kLanes * 8;
  uint64_t sums[kLanes];
  for (size_t i = 0; i < kLanes; ++i) sums[i] = kFactor * (i + 1) + bytes.size();
  const auto add = [&](const char* from) {
    uint64_t words[kLanes];
    std::memcpy(words, from, kStep);
    for (size_t i = 0; i < kLanes; ++i) sums[i] = std::rotl((sums[i] ^ words[i]) * kFactor, 29);
  };
  size_t at = 0;
  for (; at + kStep <= bytes.size(); at += kStep) add(bytes.data() + at);
  char rest[kStep] = {};
  if (at < bytes.size()) std::memcpy(rest, bytes.data() + at, bytes.size() - at);
  add(rest);
  uint64_t sum = 0;
  for (const uint64_t lane : sums) sum = std::rotl((sum ^ lane) * kFactor, 29);
  return sum ^ sum >> 32;
}

uint64_t checksum_of_words(const std::vector<uint64_t>& words) {
  return checksum({reinterpret_cast<const char*>(words.data()), words.size() * 8});
}

// Asks for pages of a mapping in large steps: a fault each 64 KiB costs more than the hash.
void populate(Region bytes) {
#ifdef MADV_POPULATE_READ
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data()) / page * page;
  const auto end = reinterpret_cast<uintptr_t>(bytes.data()) + bytes.size();
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_READ);  // a hint: older kernels refuse
#else
  static_cast<void>(bytes);
#endif
}

std::vector<uint64_t> checksums(const std::vector<Region>& regions) {
  struct Chunk {
    Region bytes;
    uint64_t* sum;
  };
  std::vector<std::vector<uint64_t>> sums_of(regions.size());
  std::vector<Chunk> chunks;
  for (size_t i = 0; i < regions.size(); ++i) {
    sums_of[i].resize((regions[i].size() + kChunkBytes - 1) / kChunkBytes);
    for (size_t c = 0; c < sums_of[i].size(); ++c) {
      const size_t begin = c * kChunkBytes;
      chunks.push_back({regions[i].subspan(begin, std::min(kChunkBytes, regions[i].size() - begin)), &sums_of[i][c]});
    }
  }
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < chunks.size(); i = next++) {
      populate(chunks[i].bytes);
      *chunks[i].sum = checksum(chunks[i].bytes);
    }
  };
  const int num_threads = std::min(kMaxHashThreads, default_num_threads());
  std::vector<std::thread> threads;
  try {
    for (int i = 1; i < num_threads; ++i) threads.emplace_back(work);
  } catch (const std::system_error&) {  // the system lends no more: fewer do the same work
  }
  work();
  for (std::thread& thread : threads) thread.join();
  std::vector<uint64_t> sums;
  for (const std::vector<uint64_t>& of_region : sums_of) sums.push_back(checksum_of_words(of_region));
  return sums;
}

void append(std::string& text, uint64_t word) { text.append(reinterpret_cast<const char*>(&word), 8); }

struct Layout {
  std::vector<uint64_t> offsets;  // of the regions
  uint64_t checksums_offset = 0;  // of the table of regions
  uint64_t header_bytes = 0, file_bytes = 0;
};

Layout layout_of(const std::string& key, const std::vector<size_t>& region_bytes) {
  Layout layout;
  layout.checksums_offset = sizeof kMagic + 3 * 8 + rounded_up(key.size(), 8);
  layout.header_bytes = layout.checksums_offset + region_bytes.size() * 24 + 8;
  layout.file_bytes = layout.header_bytes;
  for (const size_t bytes : region_bytes) {
    layout.offsets.push_back(rounded_up(layout.file_bytes, kAlign));
    layout.file_bytes = layout.offsets.back() + bytes;
  }
  return layout;
}

std::string header_of(const std::string& key, const std::vector<size_t>& region_bytes,
                      const std::vector<uint64_t>& sums) {
  const Layout layout = layout_of(key, region_bytes);
  std::string header(kMagic, sizeof kMagic);
  append(header, layout.file_bytes);
  append(header, key.size());
  append(header, region_bytes.size());
  header += key;
  header.resize(layout.checksums_offset);
  for (size_t i = 0; i < region_bytes.size(); ++i) {
    append(header, layout.offsets[i]);
    append(header, region_bytes[i]);
    append(header, sums[i]);
  }
  append(header, checksum(header));
  return header;
}

// The mapped files, for the handler of SIGBUS: a page of a file that became shorter cannot be read any more, and no
// step can go on without it. The handler may not lock nor allocate, so that what it reads lies in a fixed place and its
// line is ready.
struct MappedRange {
  std::atomic<uintptr_t> begin{0}, end{0};  // end 0: free
  char line[1024];
};
constexpr size_t kMaxMappedRanges = 256;
std::array<MappedRange, kMaxMappedRanges> mapped_ranges;
std::mutex mapped_ranges_mutex;
struct sigaction action_before;

// Explains the end that is near: the access is repeated with what was in force before, which ends the process unless
// somebody else handles it.
void explain_sigbus(int, siginfo_t* info, void*) {
  const int saved_errno = errno;
  const auto address = info->si_code <= 0 ? 0 : reinterpret_cast<uintptr_t>(info->si_addr);
  for (const MappedRange& range : mapped_ranges) {
    if (address < range.begin.load(std::memory_order_acquire) || address >= range.end.load(std::memory_order_acquire))
      continue;
    if (::write(STDERR_FILENO, range.line, std::strlen(range.line)) < 0) break;
  }
  ::sigaction(SIGBUS, &action_before, nullptr);
  if (info->si_code <= 0) ::raise(SIGBUS);  // somebody sent it: there is no access to repeat
  errno = saved_errno;
}

void watch_for_sigbus(const char* begin, uint64_t bytes, const std::string& path) {
  const std::scoped_lock lock(mapped_ranges_mutex);
  static const bool is_installed = [] {
    struct sigaction action {};
    action.sa_sigaction = explain_sigbus;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    ::sigemptyset(&action.sa_mask);
    return ::sigaction(SIGBUS, &action, &action_before) == 0;
  }();
  const auto free = std::ranges::find_if(mapped_ranges, [](const MappedRange& range) { return range.end.load() == 0; });
  if (!is_installed || free == mapped_ranges.end()) return;  // such an end will come without the line
  const std::string line =
      "spate: --weight-cache: " + path.substr(0, 700) +
      " became shorter, or its disk failed, while it was in use: this process ends with SIGBUS. Start it again: "
      "the weights are packed again. Files of the folder must only be removed or renamed, never written to\n";
  std::memcpy(free->line, line.c_str(), line.size() + 1);
  free->begin.store(reinterpret_cast<uintptr_t>(begin), std::memory_order_release);
  free->end.store(reinterpret_cast<uintptr_t>(begin) + bytes, std::memory_order_release);
}

void forget_range(const char* begin) {
  const std::scoped_lock lock(mapped_ranges_mutex);
  for (MappedRange& range : mapped_ranges) {
    if (range.end.load() != 0 && range.begin.load() == reinterpret_cast<uintptr_t>(begin)) range.end.store(0);
  }
}

// Closes when it goes.
struct FileDescriptor {
  int fd;
  ~FileDescriptor() {
    if (fd >= 0) ::close(fd);
  }
};

Status write_at(int fd, Region bytes, uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t written =
        ::pwrite(fd, bytes.data(), std::min<size_t>(bytes.size(), 64 << 20), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return resource_exhausted("{}", written < 0 ? std::strerror(errno) : "nothing was written");
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
  return ok_status();
}

Status write_all(int fd, const std::string& header, const Layout& layout, const std::vector<Region>& regions) {
  // So that a full disk is noticed before anything is written. Not every file system can.
  const int error = ::posix_fallocate(fd, 0, static_cast<off_t>(layout.file_bytes));
  if (error == ENOSPC || error == EFBIG || error == EDQUOT) return resource_exhausted("{}", std::strerror(error));
  RETURN_IF_ERROR(write_at(fd, header, 0));
  for (size_t i = 0; i < regions.size(); ++i) RETURN_IF_ERROR(write_at(fd, regions[i], layout.offsets[i]));
  if (::ftruncate(fd, static_cast<off_t>(layout.file_bytes)) != 0)
    return resource_exhausted("{}", std::strerror(errno));
  return ok_status();
}

}  // namespace

uint64_t PackedFile::file_bytes(const std::string& key, const std::vector<size_t>& region_bytes) {
  return layout_of(key, region_bytes).file_bytes;
}

PackedFile::~PackedFile() {
  if (begin_ != nullptr) forget_range(begin_);
  if (reserved_ != nullptr) ::munmap(reserved_, reserved_bytes_);
}

Status PackedFile::map(int fd, uint64_t bytes, const std::string& path) {
  reserved_bytes_ = bytes + kMapAlign;
  void* reserved = ::mmap(nullptr, reserved_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return resource_exhausted("mmap of {} bytes: {}", bytes, std::strerror(errno));
  reserved_ = static_cast<char*>(reserved);
  char* const begin = reserved_ + (kMapAlign - reinterpret_cast<uintptr_t>(reserved_) % kMapAlign) % kMapAlign;
  if (::mmap(begin, bytes, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
    return resource_exhausted("mmap of {} bytes: {}", bytes, std::strerror(errno));
  }
  ::madvise(begin, bytes, MADV_HUGEPAGE);
  begin_ = begin;
  watch_for_sigbus(begin, bytes, path);
  regions_ = {Region(begin, bytes)};  // the whole file until open() has looked at it
  return ok_status();
}

Result<std::shared_ptr<const PackedFile>> PackedFile::open(const std::filesystem::path& path, const std::string& key,
                                                           const std::vector<size_t>& region_bytes) {
  const FileDescriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW)};
  if (file.fd < 0) {
    return errno == ENOENT ? not_found("{}: there is no such file", path.string())
                           : data_loss("{}: {}", path.string(), std::strerror(errno));
  }
  struct stat info {};
  if (::fstat(file.fd, &info) != 0 || !S_ISREG(info.st_mode)) return data_loss("{}: not a regular file", path.string());
  if (info.st_uid != ::geteuid() && info.st_uid != 0) {
    return data_loss("{}: belongs to user {}, who is neither this one nor root", path.string(), info.st_uid);
  }
  const Layout layout = layout_of(key, region_bytes);
  if (static_cast<uint64_t>(info.st_size) != layout.file_bytes) {
    return data_loss("{}: has {} bytes, these weights need {}", path.string(), info.st_size, layout.file_bytes);
  }
  std::shared_ptr<PackedFile> packed(new PackedFile());
  if (const Status status = packed->map(file.fd, layout.file_bytes, path.string()); !status.ok())
    return status.with_context(path.string());
  const Region all = packed->regions_[0];
  std::vector<Region> regions;
  std::vector<uint64_t> sums(region_bytes.size());
  for (size_t i = 0; i < region_bytes.size(); ++i) {
    regions.push_back(all.subspan(layout.offsets[i], region_bytes[i]));
    std::memcpy(&sums[i], all.data() + layout.checksums_offset + i * 24 + 16, 8);
  }
  if (std::memcmp(header_of(key, region_bytes, sums).data(), all.data(), layout.header_bytes) != 0) {
    return data_loss("{}: its header is damaged or of other weights", path.string());
  }
  const std::vector<uint64_t> found = checksums(regions);
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i] == sums[i]) continue;
    return data_loss("{}: the {} bytes from {} on are damaged (checksum {:016x}, needs {:016x})", path.string(),
                     region_bytes[i], layout.offsets[i], found[i], sums[i]);
  }
  packed->regions_ = std::move(regions);
  return std::shared_ptr<const PackedFile>(std::move(packed));
}

bool PackedFile::is_abandoned(const std::filesystem::path& unfinished) {
  const FileDescriptor file{::open(unfinished.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW)};
  return file.fd >= 0 && ::flock(file.fd, LOCK_EX | LOCK_NB) == 0;
}

Status PackedFile::write(const std::filesystem::path& path, const std::string& key,
                         const std::vector<Region>& regions) {
  std::vector<size_t> region_bytes;
  for (const Region region : regions) region_bytes.push_back(region.size());
  std::string temporary = path.string() + ".XXXXXX";
  const FileDescriptor file{::mkostemp(temporary.data(), O_CLOEXEC)};
  if (file.fd < 0) return resource_exhausted("{}: {}", temporary, std::strerror(errno));
  ::flock(file.fd, LOCK_EX | LOCK_NB);  // goes with this process; not every file system can
  Status status =
      write_all(file.fd, header_of(key, region_bytes, checksums(regions)), layout_of(key, region_bytes), regions);
  if (status.ok() && ::rename(temporary.c_str(), path.c_str()) != 0) {
    status = resource_exhausted("rename: {}", std::strerror(errno));
  }
  if (status.ok()) return ok_status();
  ::unlink(temporary.c_str());
  return status.with_context(path.string());
}

}  // namespace spate
