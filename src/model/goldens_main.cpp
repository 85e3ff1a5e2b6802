// spate-goldens: the golden tests of the models on any back-end, for machines that the unit tests do not run on.
//
//   spate-goldens [--backend NAME] [--isa NAME] [--goldens DIR] [--shard I/N] [--verbose]
//
// Prints a line a failure and "N passed, M failed"; the exit code is 1 when something failed or nothing ran.
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>

#include "backend/registry/registry.h"
#include "model/golden_runner.h"

namespace spate {
namespace {

struct GoldensArguments {
  std::string backend{oracle_back_end().name};
  std::string isa;  // DeviceOptions::isa
  std::string goldens = "test/goldens/model";
  int shard = 1, num_shards = 1;
  bool verbose = false;
};

int usage() {
  std::fprintf(stderr, "usage: spate-goldens [--backend %s] [--isa NAME] [--goldens DIR] [--shard I/N] [--verbose]\n",
               back_end_names("|").c_str());
  return 2;
}

int run_all(const GoldensArguments& arguments, const BackEnd& back_end) {
  int num_passed = 0, num_failed = 0, num_refused = 0, golden_idx = 0;
  const int max_ranks = std::min(back_end.max_ranks, 2);
  for (const auto& folder : golden_folders(arguments.goldens)) {
    for (const DType act_dtype : {DType::kF32, DType::kBf16}) {
      for (int ranks = 1; ranks <= max_ranks; ++ranks) {
        for (const GoldenSchedule schedule :
             {GoldenSchedule::kOneByOne, GoldenSchedule::kBatched, GoldenSchedule::kChunked}) {
          if (golden_idx++ % arguments.num_shards != arguments.shard - 1) continue;
          const std::string name = fmt::format("{} {} tp{} {}", folder.filename().string(), dtype_name(act_dtype),
                                               ranks, golden_schedule_name(schedule));
          const auto result = run_golden(folder, back_end.make_device, {.num_threads = 1, .isa = arguments.isa},
                                         {.act_dtype = act_dtype, .tensor_parallel_size = ranks, .schedule = schedule});
          if (!result.ok() && result.status().code() == StatusCode::kUnimplemented) {
            if (num_refused++ == 0 || arguments.verbose)
              std::printf("refused %s: %s\n", name.c_str(), result.status().message().c_str());
            continue;
          }
          const bool passed = result.ok() && result->failures.empty();
          ++(passed ? num_passed : num_failed);
          if (!result.ok()) std::printf("FAILED %s: %s\n", name.c_str(), result.status().to_string().c_str());
          if (!result.ok()) continue;
          for (const std::string& failure : result->failures)
            std::printf("FAILED %s: %s\n", name.c_str(), failure.c_str());
          if (!arguments.verbose) continue;
          std::printf("%-50s hidden %.2e  logits %.2e\n", name.c_str(), result->hidden_error, result->logits_error);
        }
      }
    }
  }
  if (num_refused > 0) std::printf("%d refused: the back-end does not run these models\n", num_refused);
  std::printf("%d passed, %d failed\n", num_passed, num_failed);
  return num_failed == 0 && num_passed > 0 ? 0 : 1;
}

bool is_shard(const char* text, GoldensArguments& arguments) {
  return std::sscanf(text, "%d/%d", &arguments.shard, &arguments.num_shards) == 2 && arguments.shard >= 1 &&
         arguments.shard <= arguments.num_shards;
}

int run_program(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // a run that is stopped has said what failed
  GoldensArguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--backend" && i + 1 < argc)
      arguments.backend = argv[++i];
    else if (flag == "--isa" && i + 1 < argc)
      arguments.isa = argv[++i];
    else if (flag == "--goldens" && i + 1 < argc)
      arguments.goldens = argv[++i];
    else if (flag == "--shard" && i + 1 < argc && is_shard(argv[i + 1], arguments))
      ++i;
    else if (flag == "--verbose")
      arguments.verbose = true;
    else
      return usage();
  }
  const BackEnd* back_end = find_back_end(arguments.backend);
  if (back_end == nullptr) return usage();
  if (const auto device = back_end->make_device({.isa = arguments.isa}); !device.ok()) {
    std::printf("%s\n", device.status().to_string().c_str());
    return 1;
  }
  return run_all(arguments, *back_end);
}

}  // namespace
}  // namespace spate

int main(int argc, char** argv) {
  if (const std::optional<int> code = spate::run_back_end_worker(argc, argv)) return *code;
  return spate::run_program(argc, argv);
}
