// Goal: the host side of the CUDA back-end, on machines without a GPU: where sources come from, what the cache of
// compiled kernels believes, which launches a fatal error names, how weights and blocks are laid out; and that a
// missing GPU is one clear line. Method: files in a temporary folder. What the kernels compute is the business of
// spate-conformance.
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "backend/cuda/cubin_cache.h"
#include "backend/cuda/cuda_device.h"
#include "backend/cuda/cuda_runtime.h"
#include "backend/cuda/kernel/kv/kv_layout.h"
#include "backend/cuda/kernel/latent/latent_split.h"
#include "backend/cuda/kernel/linear/int4_groups.h"
#include "backend/cuda/kernel/linear/linear_integer.h"
#include "backend/cuda/kernel/linear/wgmma_plan.h"
#include "backend/cuda/kernel_compiler.h"
#include "backend/cuda/kernel_list.h"
#include "backend/cuda/kernel_worker.h"
#include "backend/cuda/launch.h"
#include "backend/cuda/ptxas_log.h"
#include "backend/cuda/tile_table.h"
#include "backend/cuda/warm_programs.h"
#include "base/rng.h"
#include "base/test.h"
#include "base/test_support.h"
#include "quant/quantization.h"

namespace spate::cuda {
namespace {

TEST_CASE("embedded sources are the files, and all that programs include") {
  const std::filesystem::path src = repo_root() / "src";
  std::set<std::string> embedded;
  for (const EmbeddedSource& source : embedded_sources()) {
    const std::string file = read_file_or_die(src / source.name);
    CHECK(source.text == file);
    embedded.insert(std::string(source.name));
  }
  for (const auto& entry : std::filesystem::recursive_directory_iterator(src / kKernelFolder)) {
    if (entry.path().extension() != ".cu") continue;
    CHECK_MESSAGE(embedded.contains(entry.path().lexically_relative(src).generic_string()), entry.path().string());
  }
}

TEST_CASE("a kernel folder replaces the embedded kernels, and nothing else") {
  const TempDir folder;
  std::filesystem::create_directories(folder.path() / "rope");
  std::ofstream(folder.path() / "rope" / "rope.cu") << "// edited\n";
  std::ofstream(folder.path() / "notes.txt") << "no source\n";
  const Result<KernelSources> sources = KernelSources::load(folder.path().string());
  REQUIRE(sources.ok());
  const std::string* rope = sources->find("backend/cuda/kernel/rope/rope.cu");
  REQUIRE(rope != nullptr);
  CHECK(*rope == "// edited\n");
  CHECK(sources->find("backend/cuda/kernel/linear/linear.cu") == nullptr);
  CHECK(sources->find("backend/cuda/kernel/notes.txt") == nullptr);
  CHECK(sources->find("core/step_plan.h") != nullptr);
  CHECK(KernelSources::load("").value().find("cstdint") != nullptr);

  const Result<KernelSources> missing = KernelSources::load((folder.path() / "absent").string());
  REQUIRE(!missing.ok());
  CHECK(missing.status().message().find("absent") != std::string::npos);
}

TEST_CASE("the cache gives back what was stored, and nothing that was cut or changed") {
  const TempDir folder;
  const CubinCache cache(folder.path() / "kernels");
  const std::string cubin("binary\0with a zero", 18);
  CHECK(!cache.find("key").has_value());
  cache.store("key", cubin);
  CHECK(cache.find("key") == cubin);
  CHECK(!cache.find("other key").has_value());
  // Nothing is left beside the entry.
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path() / "kernels"), {}) == 1);

  const std::filesystem::path path = cache.path_of("key");
  const std::string file = read_file_or_die(path);
  for (const size_t cut : {size_t{0}, size_t{7}, size_t{24}, file.size() - 1}) {
    std::ofstream(path, std::ios::binary) << file.substr(0, cut);
    CHECK(!cache.find("key").has_value());
  }
  for (const size_t flipped : {size_t{0}, size_t{9}, size_t{17}, file.size() - 1}) {
    std::string changed = file;
    changed[flipped] = static_cast<char>(changed[flipped] ^ 1);
    std::ofstream(path, std::ios::binary) << changed;
    CHECK(!cache.find("key").has_value());
  }
  cache.store("key", cubin);
  CHECK(cache.find("key") == cubin);
}

TEST_CASE("a cache that cannot be written finds nothing and does not fail") {
  const TempDir folder;
  std::ofstream(folder.path() / "file") << "in the way";
  const CubinCache blocked(folder.path() / "file" / "kernels");
  blocked.store("key", "cubin");
  CHECK(!blocked.find("key").has_value());
  const CubinCache none{std::filesystem::path()};
  none.store("key", "cubin");
  CHECK(!none.find("key").has_value());
}

TEST_CASE("workers leave what they compile in the cache, and in a temporary folder where that keeps nothing") {
  const TempDir folder;
  std::ofstream(folder.path() / "file") << "in the way";
  const std::filesystem::path kept = folder.path() / "new" / "kernels";
  CHECK(WorkerFolder(kept).path() == kept);
  CHECK(std::filesystem::is_empty(kept));
  for (const std::filesystem::path& none : {folder.path() / "file" / "kernels", std::filesystem::path()}) {
    std::filesystem::path temporary;
    {
      const WorkerFolder workers(none);
      temporary = workers.path();
      CHECK(temporary != none);
      CubinCache(temporary).store("key", "cubin");
      CHECK(CubinCache(temporary).find("key") == "cubin");
    }
    CHECK(!std::filesystem::exists(temporary));
  }
}

// A process that starts a worker and waits: the worker writes a byte where it is not ended by end_with_parent().
pid_t start_idle_worker(int write_fd, bool expects_another) {
  const pid_t parent = fork();
  if (parent != 0) return parent;
  const pid_t self = getpid();
  if (fork() == 0) {
    end_with_parent(expects_another ? 1 : self);
    static_cast<void>(write(write_fd, "r", 1));
  } else {
    close(write_fd);
  }
  alarm(60);
  for (;;) pause();
}

TEST_CASE("a worker ends with the process that started it, also where that was gone before") {
  for (const bool expects_another : {false, true}) {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    const pid_t parent = start_idle_worker(ends[1], expects_another);
    REQUIRE(parent > 0);
    close(ends[1]);
    const auto read_byte = [&] {  // 1: a byte came; 0: all that could write have ended; -1: neither
      pollfd end{.fd = ends[0], .events = POLLIN, .revents = 0};
      char byte;
      return poll(&end, 1, 10'000) == 1 ? read(ends[0], &byte, 1) : -1;
    };
    if (!expects_another) CHECK(read_byte() == 1);
    if (!expects_another) kill(parent, SIGKILL);
    CHECK(read_byte() == 0);
    kill(parent, SIGKILL);
    waitpid(parent, nullptr, 0);
    close(ends[0]);
  }
}

TEST_CASE("the key of a program changes with each thing that decides its cubin") {
  const KernelSources sources = KernelSources::load("").value();
  const std::string key = program_key("NVRTC 13.0", sources, "rope/rope.cu", "sm_90a").value();
  CHECK(key == program_key("NVRTC 13.0", sources, "rope/rope.cu", "sm_90a").value());
  CHECK(key != program_key("NVRTC 13.0", sources, "rope/rope.cu", "sm_80").value());
  CHECK(key != program_key("NVRTC 13.0", sources, "kv/kv.cu", "sm_90a").value());
  CHECK(key != program_key("NVRTC 13.1", sources, "rope/rope.cu", "sm_90a").value());
  CHECK(key != program_key(kAheadOfTime, sources, "rope/rope.cu", "sm_90a").value());
  CHECK(!program_key("NVRTC 13.0", sources, "no/such.cu", "sm_90a").ok());
}

std::set<std::string> warm_set(const DeviceUse& use, std::string_view architecture = kHopper,
                               bool is_deterministic = false) {
  const KernelSources sources = KernelSources::load("").value();
  const auto programs = warm_programs(sources, architecture, use_words(use, architecture, is_deterministic)).value();
  return {programs.begin(), programs.end()};
}

// Those whose name has the text.
int count_with(const std::set<std::string>& programs, std::string_view text) {
  return static_cast<int>(std::ranges::count_if(
      programs, [&](const std::string& program) { return program.find(text) != std::string::npos; }));
}

const KvLayerDesc kHeads128{.num_kv_heads = 8, .head_dim = 128, .kv_block_size = 16, .dtype = DType::kBf16};
const KvLayerDesc kLatentLayer{
    .kind = KvKind::kLatent, .kv_lora_rank = 512, .qk_rope_head_dim = 64, .dtype = DType::kBf16};
const WeightSpec kBf16Spec{.codes = Codes::kBf16};

TEST_CASE("a start compiles what the model launches: a dense model, one with experts and latent attention, codes") {
  const std::set<std::string> dense = warm_set({.kv_layers = {kHeads128}, .weights = {kBf16Spec}});
  for (const char* absent : {"expert/", "latent/", "int8", "int4", "codes", "quantize", "limits/", "attention_paged",
                             "linear_tile", "linear/linear.cu"}) {
    INFO(absent);
    CHECK(count_with(dense, absent) == 0);
  }
  for (const char* present : {"attention_decode_ring.cu", "attention_prefill_wgmma.cu", "linear_wgmma.cu",
                              "linear_silu_wgmma.cu", "linear_rows.cu", "linear_split.cu", "linear_chain.cu",
                              "rms_norm.cu", "sample.cu", "sample_cluster.cu", "logprobs.cu", "step.cu", "kv.cu"}) {
    INFO(present);
    CHECK(count_with(dense, present) == 1);
  }

  const std::set<std::string> experts =
      warm_set({.kv_layers = {kLatentLayer}, .weights = {kBf16Spec}, .expert_weights = {kBf16Spec}});
  for (const char* present : {"expert_wgmma.cu", "expert_combine.cu", "route_experts.cu", "head_product.cu",
                              "latent_wgmma.cu", "latent_expanded_wgmma.cu", "latent_write.cu", "linear_wgmma.cu"}) {
    INFO(present);
    CHECK(count_with(experts, present) == 1);
  }
  CHECK(count_with(experts, "attention/") == 0);
  CHECK(count_with(experts, "expert_int") == 0);
  CHECK(count_with(experts, "latent_wgmma_int8.cu") == 0);
  KvLayerDesc latent_codes = kLatentLayer;
  latent_codes.dtype = DType::kI8;
  const std::set<std::string> over_codes = warm_set({.kv_layers = {latent_codes}, .weights = {kBf16Spec}});
  CHECK(count_with(over_codes, "latent_wgmma_int8.cu") == 1);
  CHECK(count_with(over_codes, "latent_wgmma.cu") == 0);

  const Quantization int4 = parse_quantization("int4").value();
  const std::set<std::string> codes = warm_set({.kv_layers = {kHeads128}, .weights = {int4.linear, int4.vocabulary}});
  for (const char* present : {"linear_int4.cu", "linear_int4_n256.cu", "linear_int8.cu", "linear_codes.cu",
                              "quantize_rows.cu", "pack_integer.cu", "add_rms_norm_codes.cu"}) {
    INFO(present);
    CHECK(count_with(codes, present) == 1);
  }
  for (const char* absent : {"int4_g32", "expert/", "linear_wgmma"}) {
    INFO(absent);
    CHECK(count_with(codes, absent) == 0);
  }
  const std::set<std::string> int4_experts =
      warm_set({.kv_layers = {kHeads128}, .weights = {kBf16Spec}, .expert_weights = {int4.linear}});
  CHECK(count_with(int4_experts, "expert/expert_int4") == 2);
  CHECK(count_with(int4_experts, "expert/expert_stream_int4") == 1);
  CHECK(count_with(int4_experts, "linear_int4") == 0);
}

TEST_CASE("what is warm depends on the GPU, the cache and --deterministic") {
  const DeviceUse use{.kv_layers = {kHeads128}, .weights = {kBf16Spec}};
  const std::set<std::string> deterministic = warm_set(use, kHopper, true);
  CHECK(count_with(deterministic, "attention_paged.cu") == 1);
  CHECK(count_with(deterministic, "attention_decode") == 0);
  CHECK(count_with(deterministic, "linear_rows") == 0);
  const std::set<std::string> older = warm_set(use, "sm_80");
  CHECK(count_with(older, "linear_tile.cu") == 1);
  CHECK(count_with(older, "attention_prefill.cu") == 1);
  CHECK(count_with(older, "wgmma") == 0);
  DeviceUse int8_cache = use;
  int8_cache.kv_layers[0].dtype = DType::kI8;
  CHECK(count_with(warm_set(int8_cache), "attention_decode_ring_int8.cu") == 1);
  CHECK(count_with(warm_set(int8_cache), "attention_decode_ring.cu") == 0);
  DeviceUse wide = use;
  wide.kv_layers[0].head_dim = 256;
  CHECK(count_with(warm_set(wide), "attention_paged.cu") == 1);
}

TEST_CASE("every program says in words that are known what it is warm for, the longest come first") {
  const KernelSources sources = KernelSources::load("").value();
  for (const std::string_view architecture : {kHopper, std::string_view("sm_80")}) {
    const auto all = warm_programs(sources, architecture, all_use_words());
    REQUIRE_MESSAGE(all.ok(), all.status().message());
    CHECK(all->size() == programs_for(architecture).size());
    double before = 1e9;
    for (const std::string_view program : *all) {
      const double seconds =
          parse_warm_line(*sources.find(std::string(kKernelFolder) + std::string(program))).value().seconds;
      CHECK(seconds <= before);
      before = seconds;
    }
  }
  CHECK(warm_set({.is_everything = true}).size() == programs_for(kHopper).size());
  CHECK(parse_warm_line("// WHAT  x\n").value().uses.empty());
  CHECK(parse_warm_line("// WARM       2.5 s: int4, fast; int8\n").value().seconds == 2.5);
  CHECK(parse_warm_line("// WARM       2.5 s: int4, fast; int8\n").value().uses ==
        std::vector<std::vector<std::string>>{{"int4", "fast"}, {"int8"}});
  CHECK(!parse_warm_line("// WARM       2 s: int5\n").ok());
  CHECK(!parse_warm_line("// WARM       int4\n").ok());
  CHECK(!parse_warm_line("// WARM       two s: int4\n").ok());
}

TEST_CASE("a table of tiles: read as it was written, and not where it is damaged or of something else") {
  const TileTableKey key{.device = "NVIDIA H100 80GB HBM3", .driver_version = 13000, .kernels = "0123abcd"};
  TileTable table;
  table.set("linear_wgmma", 6144, 64, 17, 32, TileChoice{32, TileCut::kRest});
  table.set("linear_wgmma", 6144, 64, 33, 64, TileChoice{64, TileCut::kAll});
  table.set("linear_int8", 4096, 32, 9, 16, TileChoice{8, TileCut::kNone});
  CHECK(table.size() == 3);
  const std::string text = table.text(key);
  const TileTable read = TileTable::parse(text, key).value();
  CHECK(read.text(key) == text);
  CHECK(read.find("linear_wgmma", 6144, 64, 17) == TileChoice{32, TileCut::kRest});
  CHECK(read.find("linear_wgmma", 6144, 64, 32) == TileChoice{32, TileCut::kRest});
  CHECK(read.find("linear_wgmma", 6144, 64, 33) == TileChoice{64, TileCut::kAll});
  for (const auto& [kernel, out_features, num_steps, num_tokens] : {std::tuple{"linear_wgmma", 6144, 64, 16},
                                                                    {"linear_wgmma", 6144, 64, 65},
                                                                    {"linear_wgmma", 6145, 64, 32},
                                                                    {"linear_wgmma", 6144, 63, 32},
                                                                    {"linear_int4", 6144, 64, 32}}) {
    CHECK(!read.find(kernel, out_features, num_steps, num_tokens).has_value());
  }
  // What overlaps is replaced; nothing takes a range away.
  table.set("linear_wgmma", 6144, 64, 30, 40, TileChoice{16, TileCut::kNone});
  CHECK(table.size() == 2);
  table.set("linear_wgmma", 6144, 64, 30, 40, std::nullopt);
  CHECK(!table.find("linear_wgmma", 6144, 64, 32).has_value());

  for (size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    CHECK(!TileTable::parse(changed, key).ok());
    CHECK(!TileTable::parse(text.substr(0, i), key).ok());
  }
  for (TileTableKey other : {TileTableKey{"NVIDIA H200", 13000, "0123abcd"},
                             {key.device, 12080, "0123abcd"},
                             {key.device, 13000, "0123abce"}}) {
    CHECK(!TileTable::parse(text, other).ok());
  }
  TileTable wrong;
  wrong.set("linear_wgmma", 6144, 64, 17, 32, TileChoice{48, TileCut::kRest});  // no kernel has such tiles
  CHECK(!TileTable::parse(wrong.text(key), key).ok());
  CHECK(TileTable::path_of("/cache", key).filename() == "tiles-NVIDIA-H100-80GB-HBM3.txt");
}

TEST_CASE("choices of tiles to time: none twice, none larger than the tokens need") {
  for (const int64_t num_tokens : {9, 16, 32, 100, 256, 300, 8192}) {
    const std::vector<TileChoice> choices = tile_choices(132, 4096, num_tokens);
    CHECK(choices.size() >= 3);
    for (const TileChoice& choice : choices) {
      CHECK(std::ranges::count(choices, choice) == 1);
      CHECK(choice.tile_tokens <= kWgmmaTileTokens[wgmma_kernel_idx(num_tokens)]);
    }
  }
}

TEST_CASE("a folder of kernels compiled ahead of time reports what ptxas said, and is found again") {
  const Result<const NvrtcApi*> nvrtc = nvrtc_api();
  if (!nvrtc.ok()) return skip_test(nvrtc.status().message());
  const TempDir folder;
  const CompileJob job{.architecture = "sm_80", .kernel_dir = "", .folder = folder.path(), .is_ahead_of_time = true};
  REQUIRE(compile_into_cache("rope/rope.cu", job).ok());
  const KernelSources sources = KernelSources::load("").value();
  const std::string key = program_key(kAheadOfTime, sources, "rope/rope.cu", "sm_80").value();
  CHECK(CubinCache(folder.path()).find(key).value().substr(1, 3) == "ELF");
  const std::string log = CubinCache(folder.path()).find(log_key(key)).value();
  CHECK(parse_ptxas_log(log).at("rope_bf16").registers > 0);
  CHECK(!compile_into_cache("no/such.cu", job).ok());
}

TEST_CASE("the log of ptxas: registers, stack, spills and shared memory of each kernel") {
  const std::map<std::string, KernelUsage> usages = parse_ptxas_log(
      "ptxas info    : Compiling entry function 'f' for 'sm_90a'\n"
      "ptxas info    : Function properties for f\n"
      "    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n"
      "ptxas info    : Used 168 registers, used 1 barriers, 16 bytes cumulative stack size, 1088 bytes smem\n"
      "ptxas info    : Compiling entry function 'g' for 'sm_90a'\n"
      "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
      "ptxas info    : Used 24 registers, used 0 barriers, 400 bytes cmem[0]\n");
  const KernelUsage f = usages.at("f"), g = usages.at("g");
  CHECK(std::tuple(f.registers, f.stack_bytes, f.spill_bytes, f.shared_bytes) == std::tuple(168, 16, 20, 1088));
  CHECK(std::tuple(g.registers, g.stack_bytes, g.spill_bytes, g.shared_bytes) == std::tuple(24, 0, 0, 0));
}

TEST_CASE("rows that become codes are covered by their threads, whatever their number and width") {
  for (const int num_sms : {1, 78, 132}) {
    for (const int64_t num_tokens : {1, 2, 16, 33, 66, 132, 133, 300, 2048, 16384}) {
      for (int64_t row_bytes = kIntegerTileK; row_bytes <= kMaxIntegerWidth; row_bytes += kIntegerTileK) {
        const RowShape shape = row_shape(num_sms, num_tokens, row_bytes);
        const int64_t elems = int64_t{8} * shape.num_ctas * shape.num_threads << shape.kernel_idx;
        CAPTURE(num_tokens);
        CAPTURE(row_bytes);
        REQUIRE(elems >= row_bytes);
        REQUIRE(shape.num_ctas <= kQuantizeMaxCtas);
        REQUIRE(shape.num_threads <= kQuantizeMaxThreads);
        REQUIRE(shape.num_threads % 32 == 0);
        // A thread more a CTA, and not all of them would be needed.
        REQUIRE(elems - (int64_t{8} * 32 * shape.num_ctas << shape.kernel_idx) < row_bytes);
      }
    }
  }
  // Few rows are shared by as many CTAs as there are SMs for.
  CHECK(row_shape(132, 1, 14336).num_ctas == 4);
  CHECK(row_shape(132, 132, 14336).num_ctas == 4);
  CHECK(row_shape(132, 133, 14336).num_ctas == 2);
  CHECK(row_shape(132, 264, 14336).num_ctas == 2);
  CHECK(row_shape(132, 265, 14336).num_ctas == 1);
  CHECK(row_shape(132, 1, 4096).num_ctas == 1);
}

struct LatentRuns {
  LatentSplit split;
  int num_units = 0, longest = 0;
  int num_cut = 0;  // items that several teams share
};

// The split of items (one a sequence) as the kernel makes it: every unit is a team's, in order, and first_team and
// last_team say whose.
LatentRuns cut_items(const std::vector<int>& items, int num_teams) {
  LatentRuns runs;
  std::vector<int> first_unit;
  for (const int units : items) {
    first_unit.push_back(runs.num_units);
    runs.num_units += units;
  }
  const int run = LatentSplit::run_of(runs.num_units, num_teams);
  const auto longest_of = [&](const LatentSplit& split) {
    std::vector<int> of_team(static_cast<size_t>(num_teams));
    for (size_t i = 0; i < items.size(); ++i) {
      if (items[i] > 0) of_team.at(static_cast<size_t>(split.first_team(first_unit[i], items[i]))) += items[i];
    }
    return std::ranges::max(of_team);
  };
  runs.split = {run, LatentSplit::reach_of(run, longest_of({run, LatentSplit::kUncut}))};
  std::vector<int> begins;
  for (int team = 0; team <= num_teams; ++team) {
    int begin = std::min(team * run, runs.num_units);
    for (size_t i = 0; i < items.size(); ++i) {
      if (team * run >= first_unit[i] && team * run < first_unit[i] + items[i]) {
        begin = runs.split.moved(team * run, first_unit[i], items[i]);
      }
    }
    begins.push_back(begin);
  }
  REQUIRE(begins.front() == 0);
  REQUIRE(begins.back() == runs.num_units);
  REQUIRE(std::ranges::is_sorted(begins));
  for (size_t team = 0; team < static_cast<size_t>(num_teams); ++team) {
    runs.longest = std::max(runs.longest, begins[team + 1] - begins[team]);
  }
  const auto team_of = [&](int unit) {
    return static_cast<int>(std::ranges::upper_bound(begins, unit) - begins.begin()) - 1;
  };
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i] == 0) continue;
    const int first = runs.split.first_team(first_unit[i], items[i]),
              last = runs.split.last_team(first_unit[i], items[i]);
    REQUIRE(first == team_of(first_unit[i]));
    REQUIRE(last == team_of(first_unit[i] + items[i] - 1));
    runs.num_cut += first != last;
  }
  return runs;
}

TEST_CASE(
    "int4 with scales of groups: codes and scales have places of their own, those of a stage one behind the other") {
  struct Case {
    int num_rows, width, group_width;
    bool has_offsets;
    int num_places;
  };
  for (const Case& c : {Case{130, 520, 32, false, 4}, Case{64, 320, 32, true, 4}, Case{128, 256, 64, true, 2},
                        Case{192, 640, 192, true, 2}, Case{128, 384, 128, false, 1}, Case{40, 1024, 512, true, 1},
                        Case{200, 70, 0, true, 0}}) {
    INFO(c.num_rows, " rows of ", c.width, ", groups of ", c.group_width);
    const Int4GroupLayout layout = make_int4_group_layout(c.num_rows, c.width, c.group_width, c.has_offsets);
    CHECK(layout.num_places == c.num_places);
    std::vector<int> uses(static_cast<size_t>(layout.matrix_bytes));
    const auto use = [&](int64_t offset, int64_t bytes) {
      REQUIRE(offset >= 0);
      REQUIRE(offset + bytes <= layout.matrix_bytes);
      for (int64_t i = 0; i < bytes; ++i) ++uses[static_cast<size_t>(offset + i)];
    };
    for (int row = 0; row < c.num_rows; ++row) {
      std::set<int> columns;
      for (int chunk = 0; chunk < layout.num_chunks; ++chunk) {
        const int64_t unit = layout.unit_offset(row, chunk / kInt4UnitChunks);
        for (int word = 0; word < 8; ++word) {
          const int64_t offset = layout.word_offset(row, chunk, word);
          CHECK(offset >= unit);
          CHECK(offset + 4 <= unit + kInt4UnitCodeBytes);
          use(offset, 4);
          for (int n = 0; n < 8; ++n) columns.insert(Int4GroupLayout::k_of(chunk, word, n % 4) + n / 4);
        }
      }
      CHECK(std::ssize(columns) == layout.num_chunks * kInt4GroupTileK);
      CHECK(*columns.rbegin() == layout.num_chunks * kInt4GroupTileK - 1);
      for (int idx = 0; idx < layout.num_scales(); ++idx) {
        const int64_t offset = layout.scale_offset(row, idx);
        use(offset, layout.scale_bytes);
        if (c.group_width == 0) continue;
        // A place lies in one group, and in the unit of its elements.
        CHECK(idx * layout.place_width / c.group_width == ((idx + 1) * layout.place_width - 1) / c.group_width);
        const int64_t unit = layout.unit_offset(row, idx * layout.place_width / kInt4UnitK);
        CHECK(offset >= unit + kInt4UnitCodeBytes);
        CHECK(offset + layout.scale_bytes <= unit + layout.unit_bytes);
      }
    }
    CHECK(std::ranges::max(uses) == 1);
    // The halves of a stage, and of gates and ups the half that belongs to one.
    CHECK(layout.unit_offset(kInt4UnitRows, 0) == layout.unit_bytes);
    CHECK(layout.unit_offset(0, 1) == 2 * layout.unit_bytes);
    CHECK(layout.unit_bytes % 16 == 0);
    for (const int num_chunks : {1, kInt4UnitChunks}) {
      const int stage_bytes = num_chunks * layout.unit_bytes * 2 / kInt4UnitChunks;
      const int row_scale_bytes = c.group_width == 0 ? kWgmmaTileRows * layout.scale_bytes : 0;
      CHECK(stage_bytes + row_scale_bytes <= int4_groups_stage_bytes(layout.scale_bytes > 2, num_chunks));
    }
  }
}

TEST_CASE("runs of latent attention: all units once, none much longer than equal ones, few items cut") {
  Rng rng(test_seed(), 3);
  for (int round = 0; round < 3000; ++round) {
    const int num_teams = std::array{132, 66, 33, 16, 114, 1}[rng.below(6)];
    const uint64_t num_items = 1 + rng.below(round % 3 == 0 ? 5 : 300);
    const int shortest = static_cast<int>(rng.below(2) * rng.below(200)), spread = 1 + static_cast<int>(rng.below(120));
    std::vector<int> items;
    for (uint64_t i = 0; i < num_items; ++i) {
      const int units = shortest + static_cast<int>(rng.below(static_cast<uint64_t>(spread)));
      items.push_back(rng.below(10) == 0 ? 0 : units);
    }
    CAPTURE(num_teams);
    CAPTURE(items);
    const LatentRuns runs = cut_items(items, num_teams);
    const int run = runs.split.run;
    REQUIRE(run <= std::max(LatentSplit::kMinRun, runs.num_units / num_teams + 1));
    REQUIRE(runs.longest <= run + LatentSplit::kMaxLonger);
    REQUIRE(runs.num_cut < num_teams);
    if (runs.split.reach == LatentSplit::kUncut) REQUIRE(runs.num_cut == 0);
  }
  const auto equal_items = [](int num_items, int units, int num_teams) {
    return cut_items(std::vector<int>(static_cast<size_t>(num_items), units), num_teams);
  };
  // 128 sequences of 4,096 keys of 64 and of 128 heads, of 1,024 keys; 132 of 8,192: an item a team or two.
  CHECK(std::pair(equal_items(128, 64, 132).num_cut, equal_items(128, 64, 132).longest) == std::pair(0, 64));
  CHECK(std::pair(equal_items(128, 64, 66).num_cut, equal_items(128, 64, 66).longest) == std::pair(0, 128));
  CHECK(std::pair(equal_items(128, 16, 132).num_cut, equal_items(128, 16, 132).longest) == std::pair(0, 16));
  CHECK(std::pair(equal_items(132, 128, 132).num_cut, equal_items(132, 128, 132).longest) == std::pair(0, 128));
  // Uncut, these would leave teams idle for long.
  CHECK(equal_items(1, 1024, 66).longest == 16);
  CHECK(equal_items(16, 64, 66).longest == 16);
  CHECK(equal_items(160, 64, 132).longest <= 78 + 2 * LatentSplit::kMaxCutReach);
  CHECK(equal_items(160, 64, 132).num_cut > 0);
}

TEST_CASE("architecture names: only Hopper gets its own instructions") {
  CHECK(architecture_name(9, 0) == "sm_90a");
  CHECK(architecture_name(8, 9) == "sm_89");
  CHECK(architecture_name(10, 0) == "sm_100");
}

TEST_CASE("the kernels of a program stand together in the list, each once") {
  std::set<std::string_view> programs, functions;
  std::string_view previous;
  for (const KernelInfo& kernel : kKernels) {
    CHECK(functions.insert(kernel.function).second);
    if (kernel.program != previous) CHECK(programs.insert(kernel.program).second);
    previous = kernel.program;
  }
}

TEST_CASE("weight rows and heads are padded to what vector loads need") {
  CHECK(weight_row_stride({.out_features = 3, .in_features = 1}) == 16);
  CHECK(weight_row_stride({.out_features = 3, .in_features = 4096}) == 4096);
  CHECK(weight_row_stride({.out_features = 3, .in_features = 4097}) == 4112);
  CHECK(padded_head_dim(80) == 80);
  CHECK(padded_head_dim(81) == 88);
  // The rows of a block do not overlap and fill it.
  const KvLayout kv{.num_kv_heads = 3, .kv_block_size = 16, .head_dim = 10, .padded_head_dim = padded_head_dim(10)};
  std::set<int64_t> offsets;
  for (int part = 0; part < 2; ++part) {
    for (int head = 0; head < 3; ++head) {
      for (int token = 0; token < 16; ++token) offsets.insert(kv.row_offset(part, head, token));
    }
  }
  CHECK(offsets.size() == 2 * 3 * 16);
  CHECK(*offsets.rbegin() == (2 * 3 * 16 - 1) * 16);
}

TEST_CASE("decode steps are padded to sizes that recur, others stay as they are") {
  const StepKey largest{
      .num_seqs = 100, .num_tokens = 4096, .num_logits = 1700, .max_query_len = 4096, .max_seq_len = 5000};
  const auto decode = [](int num_seqs, int max_seq_len) {
    return StepKey{.num_seqs = num_seqs,
                   .num_tokens = num_seqs,
                   .num_logits = num_seqs,
                   .max_query_len = 1,
                   .max_seq_len = max_seq_len};
  };
  std::set<int> sizes;
  for (int num_seqs = 1; num_seqs <= 100; ++num_seqs) {
    const StepKey key = padded_decode_step(decode(num_seqs, 17), largest);
    CHECK(key.num_seqs >= num_seqs);
    CHECK(key.num_seqs <= 100);
    CHECK(key == padded_decode_step(key, largest));
    CHECK(key.num_tokens == key.num_seqs);
    CHECK(key.num_logits == key.num_seqs);
    CHECK(key.max_seq_len == 256);
    sizes.insert(key.num_seqs);
  }
  CHECK(sizes == std::set<int>{1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 100});
  CHECK(padded_decode_step(decode(3, 1025), largest).max_seq_len == 2048);
  CHECK(padded_decode_step(decode(3, 4097), largest).max_seq_len == 5000);
  for (const auto& [num_top, padded] : {std::pair{-1, -1}, {0, 0}, {1, 5}, {6, 20}, {20, 20}}) {
    StepKey key = decode(3, 17);
    key.num_top_logprobs = num_top;
    CHECK(padded_decode_step(key, largest).num_top_logprobs == padded);
  }
  StepKey prefill = decode(3, 17);
  prefill.num_tokens = 20;
  prefill.max_query_len = 18;
  CHECK(padded_decode_step(prefill, largest) == prefill);
  StepKey not_all_sampled = decode(3, 17);
  not_all_sampled.num_logits = 2;
  CHECK(padded_decode_step(not_all_sampled, largest) == not_all_sampled);
}

TEST_CASE("steps with drafts are padded to sizes that recur") {
  const StepKey largest{
      .num_seqs = 100, .num_tokens = 4096, .num_logits = 1700, .max_query_len = 4096, .max_seq_len = 5000};
  std::set<StepKey> keys;
  for (int num_seqs = 1; num_seqs <= 16; ++num_seqs) {
    for (int num_drafts = 1; num_drafts <= 16; ++num_drafts) {
      for (int num_drafted = 1; num_drafted <= num_seqs; ++num_drafted) {
        const int num_tokens = num_seqs + num_drafted * num_drafts;
        const StepKey exact{.num_seqs = num_seqs,
                            .num_tokens = num_tokens,
                            .num_logits = num_tokens,
                            .max_query_len = 1 + num_drafts,
                            .max_seq_len = 300 + num_tokens};
        const StepKey key = padded_decode_step(exact, largest);
        if (num_tokens > 256) {
          CHECK(key == exact);
          continue;
        }
        CHECK(key == padded_decode_step(key, largest));
        CHECK(key.num_seqs >= num_seqs);
        CHECK(key.num_tokens >= std::max(num_tokens, key.num_seqs));
        CHECK(key.num_logits >= num_tokens);
        CHECK(key.num_logits <= key.num_tokens);
        CHECK(key.max_query_len >= 1 + num_drafts);
        CHECK(key.max_query_len <= key.num_tokens);
        CHECK(key.max_seq_len >= exact.max_seq_len);
        keys.insert(key);
      }
    }
  }
  CHECK(keys.size() < 256);  // of 512 graphs
  // What was accepted is read where drafts are wanted: a token or two a row.
  const StepKey catching_up{.num_seqs = 5, .num_tokens = 7, .num_logits = 5, .max_query_len = 2, .max_seq_len = 300};
  const StepKey padded{.num_seqs = 8, .num_tokens = 8, .num_logits = 8, .max_query_len = 2, .max_seq_len = 512};
  CHECK(padded_decode_step(catching_up, largest) == padded);
  const StepKey two_drafts{.num_seqs = 1, .num_tokens = 3, .num_logits = 3, .max_query_len = 3, .max_seq_len = 512};
  CHECK(padded_decode_step(two_drafts, largest) == two_drafts);  // no dummy
}

TEST_CASE("thread counts are whole warps within the limit") {
  CHECK(num_threads_for(0, 256) == 32);
  CHECK(num_threads_for(33, 256) == 64);
  CHECK(num_threads_for(100000, 256) == 256);
}

TEST_CASE("the probe says of a device what the factory says, without making it") {
  for (const int device_idx : {0, -1, 1000}) {
    const Status probed = probe_cuda_device({.device_idx = device_idx});
    const Result<std::unique_ptr<Device>> device = make_cuda_device({.device_idx = device_idx});
    CHECK(probed.to_string() == device.status().to_string());
    if (device_idx != 0) CHECK(!probed.ok());
  }
}

TEST_CASE("without a GPU the factory says why in one line; with one, memory round-trips") {
  Result<std::unique_ptr<Device>> device = make_cuda_device({});
  if (!device.ok()) {
    const std::string message = device.status().message();
    CHECK(message.size() > 20);
    CHECK(message.find('\n') == std::string::npos);
    return skip_test(message);
  }
  std::printf("%s\n", device.value()->description().c_str());
  Device& gpu = **device;
  const MemoryInfo memory = gpu.memory_info().value();
  CHECK(memory.free_bytes > 0);
  const Result<Buffer> too_large = gpu.allocate(static_cast<size_t>(memory.total_bytes) * 2, MemoryKind::kDevice);
  REQUIRE(!too_large.ok());
  CHECK(too_large.status().code() == StatusCode::kResourceExhausted);
  CHECK(gpu.allocate(0, MemoryKind::kDevice).ok());

  Buffer buffer = gpu.allocate(1000, MemoryKind::kDevice).value();
  const std::unique_ptr<Stream> stream = gpu.create_stream();
  std::vector<char> sent(1000, 'x'), received(1000, '?');
  gpu.fill_bytes(*stream, buffer.data(), 'y', 1000);
  gpu.copy_to_device(*stream, buffer.data(), sent.data(), 999);
  gpu.copy_to_host(*stream, received.data(), buffer.data(), 1000);
  gpu.synchronize(*stream);
  sent[999] = 'y';
  CHECK(received == sent);
}

}  // namespace
}  // namespace spate::cuda
