// weight_cache_test.cpp
//
// Goal     What a second start maps is what the first one packed, bit for bit, or it packs again: after a change of the
//          model's files, of the format, of any byte of the kept file. The folder stays within its limit.
// Method   Small checkpoints on disk and the CPU back-end; each byte of a kept file changed, each length cut.
#include "weights/weight_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <system_error>
#include <thread>

#include "backend/cpu/cpu_device.h"
#include "base/test_support.h"
#include "weights/raw_tensors.h"
#include "weights/safetensors.h"
#include "weights/weight_loader.h"

#include "base/test.h"

namespace spate {
namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
std::vector<fs::path> files_in(const fs::path& dir) {
  std::vector<fs::path> files;
  if (!fs::exists(dir)) return files;
  for (const auto& entry : fs::directory_iterator(dir)) files.push_back(entry.path());
  return files;
}

struct TwoRegions {
  std::string first = std::string(1000, 'a') + "b", second = "0123456789";
  std::string key = "a key\nof two lines";
  std::vector<Region> regions{Region(first), Region(second)};
  std::vector<size_t> sizes{first.size(), second.size()};
};

TEST_CASE("a packed file gives back what was written") {
  const TempDir dir;
  const TwoRegions two;
  const fs::path path = dir.path() / "x";
  REQUIRE(PackedFile::write(path, two.key, two.regions).ok());
  const auto file = PackedFile::open(path, two.key, two.sizes);
  REQUIRE_MESSAGE(file.ok(), file.status().to_string());
  REQUIRE((*file)->num_regions() == 2);
  CHECK(std::string((*file)->region(0).data(), (*file)->region(0).size()) == two.first);
  CHECK(std::string((*file)->region(1).data(), (*file)->region(1).size()) == two.second);
  CHECK(reinterpret_cast<uintptr_t>((*file)->region(1).data()) % 4096 == 0);
  CHECK(fs::file_size(path) == PackedFile::file_bytes(two.key, two.sizes));
  CHECK(files_in(dir.path()).size() == 1);  // nothing unfinished is left
  CHECK(PackedFile::open(dir.path() / "y", two.key, two.sizes).status().code() == StatusCode::kNotFound);
}

TEST_CASE("a packed file with one changed byte in its header or a region is not opened") {
  const TempDir dir;
  const TwoRegions two;
  const fs::path path = dir.path() / "x";
  REQUIRE(PackedFile::write(path, two.key, two.regions).ok());
  const std::string good = text_of(path);
  const size_t header_bytes = 32 + 24 + 2 * 24 + 8;
  std::vector<std::pair<size_t, size_t>> ranges{
      {0, header_bytes}, {65536, 65536 + two.first.size()}, {131072, 131072 + two.second.size()}};
  for (const auto& [begin, end] : ranges) {
    for (size_t i = begin; i < end; ++i) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ (1 << i % 8));
      write_file_or_die(path, bad);
      CAPTURE(i);
      REQUIRE(PackedFile::open(path, two.key, two.sizes).status().code() == StatusCode::kDataLoss);
    }
  }
  write_file_or_die(path, good);
  CHECK(PackedFile::open(path, two.key, two.sizes).ok());
}

TEST_CASE("a packed file is written and opened where the system lends no more threads") {
  const TempDir dir;
  const TwoRegions two;
  const NoMoreThreads limit;
  CHECK_THROWS_AS(std::thread([] {}), std::system_error);
  REQUIRE(PackedFile::write(dir.path() / "x", two.key, two.regions).ok());
  CHECK(PackedFile::open(dir.path() / "x", two.key, two.sizes).ok());
}

TEST_CASE("a packed file of another length, key or kind is not opened") {
  const TempDir dir;
  const TwoRegions two;
  const fs::path path = dir.path() / "x";
  REQUIRE(PackedFile::write(path, two.key, two.regions).ok());
  const std::string good = text_of(path);
  const auto code = [&](const std::string& key, const std::vector<size_t>& sizes) {
    return PackedFile::open(path, key, sizes).status().code();
  };
  CHECK(code("a key\nof two limes", two.sizes) == StatusCode::kDataLoss);
  CHECK(code("", two.sizes) == StatusCode::kDataLoss);
  CHECK(code(two.key, {two.sizes[1], two.sizes[0]}) == StatusCode::kDataLoss);
  CHECK(code(two.key, {two.sizes[0]}) == StatusCode::kDataLoss);
  for (const size_t length : {size_t{0}, size_t{1}, size_t{8}, size_t{100}, size_t{65536}, good.size() - 1}) {
    write_file_or_die(path, good.substr(0, length));
    CHECK(code(two.key, two.sizes) == StatusCode::kDataLoss);
  }
  write_file_or_die(path, good + "x");
  CHECK(code(two.key, two.sizes) == StatusCode::kDataLoss);
  write_file_or_die(path, std::string(good.size(), '\0'));  // a hole: what a crash may leave
  CHECK(code(two.key, two.sizes) == StatusCode::kDataLoss);
  fs::remove(path);
  fs::create_directory(path);
  CHECK(code(two.key, two.sizes) == StatusCode::kDataLoss);
  fs::remove(path);
  write_file_or_die(dir.path() / "target", good);
  fs::create_symlink(dir.path() / "target", path);
  CHECK(code(two.key, two.sizes) == StatusCode::kDataLoss);
}

// A checkpoint of two matrices and a vector in a folder, and what a loader makes of it.
class Model {
 public:
  Model() { write(0); }

  // Rewrites the checkpoint with other values.
  void write(int seed) {
    RawTensors tensors;
    for (const auto& [name, rows] : {std::pair{"a", 40}, {"b", 24}}) {
      std::string bytes;
      for (int i = 0; i < rows * kColumns; ++i) {
        const Bf16 value = Bf16::from_float(static_cast<float>((i * 37 + seed * 11 + rows) % 201 - 100) / 64.0f);
        bytes.append(reinterpret_cast<const char*>(&value), 2);
      }
      tensors[name] = {"BF16", {rows, kColumns}, bytes};
    }
    tensors["norm"] = {"BF16", {2}, std::string("\x80\x3f\x00\x40", 4)};
    write_tensors(tensors, model_dir_.path() / "model.safetensors");
    settle();
  }
  void settle() const { std::this_thread::sleep_for(std::chrono::milliseconds(80)); }

  struct Loaded {
    std::string fused, experts;  // bytes
    bool is_mapped = false;
  };
  Loaded load(const WeightSpec& spec = {}, int64_t max_bytes = int64_t{1} << 30) {
    const WeightCacheOptions options{.dir = cache_dir().string(), .max_bytes = max_bytes};
    return load_with(spec, options);
  }
  Loaded load_without_cache(const WeightSpec& spec = {}) { return load_with(spec, {}); }

  fs::path cache_dir() const { return work_dir_.path() / "new" / "cache"; }
  const fs::path& model_dir() const { return model_dir_.path(); }

 private:
  static constexpr int kColumns = 96;

  Loaded load_with(const WeightSpec& spec, const WeightCacheOptions& options) {
    const Checkpoint checkpoint = Checkpoint::open(model_dir_.path()).value();
    const auto create = [&](int64_t rows, int64_t matrices) {
      return device_
          ->create_weight({.out_features = rows, .in_features = kColumns, .spec = spec, .num_matrices = matrices})
          .value();
    };
    PackedWeight fused = create(50, 1), experts = create(12, 2);  // 40 rows of a, 10 of zeros; b as two
    HostTensor norm(DType::kF32, {2});
    WeightLoader loader(device_.get());
    loader.add(WeightLoader::MatrixSlice{"a", 40, kColumns, {0, 40}, {0, kColumns}, &fused, 0});
    loader.add_zero_rows(&fused, {40, 10});
    for (const int64_t i : {0, 1}) {
      loader.add(WeightLoader::MatrixSlice{.name = "b",
                                           .full_rows = 24,
                                           .full_columns = kColumns,
                                           .rows = {12 * i, 12},
                                           .columns = {0, kColumns},
                                           .weight = &experts,
                                           .dst_matrix = i,
                                           .shares_tensor = true});
    }
    loader.add(WeightLoader::VectorSlice{"norm", 2, {0, 2}, norm.view(), 0});
    const Status status = loader.load(checkpoint, {}, options);
    REQUIRE_MESSAGE(status.ok(), status.to_string());
    CHECK(norm.span<float>()[1] == 2.0f);
    const auto bytes = [](const PackedWeight& weight) {
      return std::string(static_cast<const char*>(weight.data()), weight.bytes());
    };
    return {bytes(fused), bytes(experts), fused.mutable_data() == nullptr && experts.mutable_data() == nullptr};
  }

  const TempDir model_dir_, work_dir_;
  std::unique_ptr<Device> device_ = make_cpu_device({.num_threads = 2}).value();
};

void check_equal(const Model::Loaded& found, const Model::Loaded& expected) {
  CHECK(found.fused == expected.fused);
  CHECK(found.experts == expected.experts);
}

TEST_CASE("the second load maps what the first one packed, in every format") {
  Model model;
  for (const WeightSpec& spec : {WeightSpec{}, WeightSpec{.codes = Codes::kF32}, integer_spec(Codes::kInt8),
                                 integer_spec(Codes::kInt4, 32, false, true), integer_spec(Codes::kInt4, 32)}) {
    CAPTURE(weight_spec_name(spec));
    const Model::Loaded expected = model.load_without_cache(spec), first = model.load(spec), second = model.load(spec);
    CHECK(!expected.is_mapped);
    CHECK(!first.is_mapped);
    CHECK(second.is_mapped);
    check_equal(first, expected);
    check_equal(second, expected);
  }
  CHECK(files_in(model.cache_dir()).size() == 5);
}

TEST_CASE("a changed model is packed again, also when its size and modification time stay") {
  Model model;
  model.load();
  const fs::path file = model.model_dir() / "model.safetensors";
  const auto modified = fs::last_write_time(file);
  model.write(1);
  fs::last_write_time(file, modified);
  model.settle();
  const Model::Loaded changed = model.load();
  CHECK(!changed.is_mapped);
  check_equal(changed, model.load_without_cache());
  CHECK(model.load().is_mapped);
  write_file_or_die(model.model_dir() / "config.json", "{}");  // may say how codes are read
  model.settle();
  CHECK(!model.load().is_mapped);
}

TEST_CASE("a model whose files changed just now is not kept: a further change might not show") {
  Model model;
  fs::last_write_time(model.model_dir() / "model.safetensors", fs::file_time_type::clock::now());
  CHECK(!model.load().is_mapped);
  CHECK(files_in(model.cache_dir()).empty());
}

TEST_CASE("a damaged file is packed again and replaced") {
  Model model;
  const Model::Loaded expected = model.load();
  const fs::path kept = files_in(model.cache_dir()).at(0);
  const std::string good = text_of(kept);
  for (const std::string& bad :
       {std::string(), std::string("x"), good.substr(0, good.size() / 2),
        good.substr(0, good.size() - 1) + static_cast<char>(good.back() ^ 1), std::string(good.size(), '\xff')}) {
    write_file_or_die(kept, bad);
    const Model::Loaded repacked = model.load();
    CHECK(!repacked.is_mapped);
    check_equal(repacked, expected);
    const Model::Loaded mapped = model.load();
    CHECK(mapped.is_mapped);
    check_equal(mapped, expected);
  }
}

TEST_CASE("a mapped weight outlives its file's name") {
  Model model;
  const Model::Loaded expected = model.load();
  const TwoRegions two;
  const fs::path path = model.model_dir() / "x";
  REQUIRE(PackedFile::write(path, two.key, two.regions).ok());
  const auto file = PackedFile::open(path, two.key, two.sizes).value();
  fs::remove(path);
  CHECK(std::memcmp(file->region(0).data(), two.first.data(), two.first.size()) == 0);
}

TEST_CASE("a file that is shortened while it is mapped: the process says which one before SIGBUS ends it") {
  const TempDir dir;
  const TwoRegions two;
  const fs::path kept = dir.path() / "kept", other = dir.path() / "other", errors = dir.path() / "errors";
  REQUIRE(PackedFile::write(kept, two.key, two.regions).ok());
  write_file_or_die(other, std::string(8192, 'x'));
  // In a child: reads a byte that is gone, of the kept file or of a mapping that nobody watches. Whether that ended it
  // as it should.
  const auto ends_by_reading = [&](bool is_kept) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      const int log = ::open(errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      ::dup2(log, STDERR_FILENO);
      const auto file = PackedFile::open(kept, two.key, two.sizes);
      const Result<MappedFile> foreign = MappedFile::open(other);
      if (!file.ok() || !foreign.ok()) ::_exit(3);
      const char* at = is_kept ? (*file)->region(1).data() : foreign->bytes().data() + 4096;
      if (::truncate((is_kept ? kept : other).c_str(), 100) != 0) ::_exit(4);
      ::_exit(*static_cast<const volatile char*>(at) == 0 ? 5 : 6);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    const bool by_sanitizer =
        WIFEXITED(status) && WEXITSTATUS(status) == 1;  // which handles SIGBUS, and was there before us
    return (WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS) || by_sanitizer;
  };
  CHECK(ends_by_reading(false));
  CHECK(text_of(errors).find("--weight-cache") == std::string::npos);
  CHECK(ends_by_reading(true));
  const std::string said = text_of(errors);
  CAPTURE(said);
  CHECK(said.starts_with("spate: --weight-cache: " + kept.string() + " became shorter"));
  CHECK(said.find("the weights are packed again") < said.find('\n'));
  CHECK(said.find("--weight-cache", said.find('\n')) == std::string::npos);
}

TEST_CASE("the folder stays within its limit: the least recently used goes first") {
  Model model;
  const WeightSpec bf16, int8 = integer_spec(Codes::kInt8), f32{.codes = Codes::kF32};
  model.load(bf16);
  const auto bytes = static_cast<int64_t>(fs::file_size(files_in(model.cache_dir()).at(0)));
  model.settle();
  model.load(int8);
  model.settle();
  CHECK(model.load(bf16).is_mapped);  // used again: int8 is older now
  model.settle();
  const int64_t limit = 5 * bytes / 2;  // two of three
  CHECK(!model.load(f32, limit).is_mapped);
  CHECK(files_in(model.cache_dir()).size() == 2);
  CHECK(model.load(bf16, limit).is_mapped);
  CHECK(model.load(f32, limit).is_mapped);
  CHECK(!model.load(int8, limit).is_mapped);
  const size_t num_kept = files_in(model.cache_dir()).size();
  CHECK(!model.load(integer_spec(Codes::kInt4, 32), 100).is_mapped);  // more than the limit: others need not go for it
  CHECK(files_in(model.cache_dir()).size() == num_kept);
}

TEST_CASE("a lowered limit holds at a start that finds its weights, too") {
  Model model;
  const WeightSpec bf16, int8 = integer_spec(Codes::kInt8), f32{.codes = Codes::kF32};
  for (const WeightSpec& spec : {f32, int8, bf16}) {
    model.load(spec);
    model.settle();
  }
  REQUIRE(files_in(model.cache_dir()).size() == 3);
  const auto bytes_of = [&](const WeightSpec& spec) {  // of the file that was used last
    model.load(spec);
    const auto files = files_in(model.cache_dir());
    const auto last =
        std::ranges::max_element(files, {}, [](const fs::path& path) { return fs::last_write_time(path); });
    model.settle();
    return static_cast<int64_t>(fs::file_size(*last));
  };
  const int64_t int8_bytes = bytes_of(int8), bf16_bytes = bytes_of(bf16);
  CHECK(model.load(bf16, bf16_bytes + int8_bytes).is_mapped);  // f32 was used before both
  CHECK(files_in(model.cache_dir()).size() == 2);
  CHECK(model.load(bf16, bf16_bytes).is_mapped);
  CHECK(files_in(model.cache_dir()).size() == 1);
  const Model::Loaded last = model.load(bf16, bf16_bytes - 1);  // mapped, though its file goes
  CHECK(last.is_mapped);
  CHECK(files_in(model.cache_dir()).empty());
  check_equal(last, model.load_without_cache(bf16));
  CHECK(!model.load(bf16, bf16_bytes - 1).is_mapped);
}

TEST_CASE("files of others in the folder stay; unfinished ones go with their writer, or after an hour") {
  Model model;
  fs::create_directories(model.cache_dir());
  write_file_or_die(model.cache_dir() / "notes.txt", std::string(100000, 'x'));
  write_file_or_die(model.cache_dir() / "0.spatepack.abcdef", "x");
  write_file_or_die(model.cache_dir() / "1.spatepack.abcdef", "x");
  write_file_or_die(model.cache_dir() / "2.spatepack.abcdef", "x");  // of a start that was killed
  fs::last_write_time(model.cache_dir() / "1.spatepack.abcdef",
                      fs::file_time_type::clock::now() - std::chrono::hours(2));
  const int writers[] = {::open((model.cache_dir() / "0.spatepack.abcdef").c_str(), O_RDWR),
                         ::open((model.cache_dir() / "1.spatepack.abcdef").c_str(), O_RDWR)};
  for (const int writer : writers) REQUIRE(::flock(writer, LOCK_EX) == 0);
  model.load({}, 200000);
  CHECK(model.load({}, 200000).is_mapped);
  CHECK(fs::exists(model.cache_dir() / "notes.txt"));
  CHECK(fs::exists(model.cache_dir() / "0.spatepack.abcdef"));
  CHECK(!fs::exists(model.cache_dir() / "1.spatepack.abcdef"));
  CHECK(!fs::exists(model.cache_dir() / "2.spatepack.abcdef"));
  for (const int writer : writers) ::close(writer);
}

TEST_CASE("a folder that cannot be made costs nothing but the line that says so") {
  Model model;
  write_file_or_die(model.cache_dir().parent_path(), "a file where the folder should be");
  const Model::Loaded loaded = model.load();
  CHECK(!loaded.is_mapped);
  check_equal(loaded, model.load_without_cache());
}

}  // namespace
}  // namespace spate
