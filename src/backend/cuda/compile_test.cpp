// Goal: every kernel compiles for sm_90a, keeps to registers, waits for the kernel before it (grid_dependency.h), and
// is the one that kKernels names; without a GPU. Method: each program is compiled as at run time (embedded sources,
// same options) by NVRTC, or by the toolkit's nvcc with the same options where NVRTC is not installed; ptxas reports
// the resources of each kernel.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "backend/cuda/kernel_compiler.h"
#include "backend/cuda/kernel_list.h"
#include "backend/cuda/ptx_check.h"
#include "backend/cuda/ptxas_log.h"
#include "base/test.h"
#include "base/test_support.h"

namespace spate::cuda {
namespace {

constexpr const char* kAmpere = "sm_80";

void check_waits(std::string_view program, const std::string& ptx) {
  for (const KernelInfo& kernel : kKernels) {
    INFO(std::string(kernel.function));
    if (kernel.program == program) CHECK(access_before_wait(ptx, kernel.function) == "");
  }
}

std::filesystem::path find_nvcc() {
  std::istringstream folders(std::string(std::getenv("PATH") ? std::getenv("PATH") : "") + ":/usr/local/cuda/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (access((folder + "/nvcc").c_str(), X_OK) == 0) return folder + "/nvcc";
  }
  return {};
}

// The programs from their embedded text, laid out as files for nvcc.
void write_sources(const std::filesystem::path& folder) {
  for (const EmbeddedSource& source : embedded_sources()) {
    const std::filesystem::path path = folder / source.name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << source.text;
  }
}

Result<std::string> compile_with_nvcc(const std::filesystem::path& nvcc, const std::filesystem::path& folder,
                                      std::string_view program, std::string_view architecture) {
  // The PTX stays beside the cubin as NAME.ptx.
  // Headers that the host shares have constexpr functions without annotations (at run time: nvrtc_options()).
  std::string command = fmt::format("cd '{}' && '{}' -cubin -keep -I . -o out.cubin --expt-relaxed-constexpr",
                                    folder.string(), nvcc.string());
  for (const std::string& option : compile_options(architecture)) command += " " + option;
  command += fmt::format(" '{}{}' 2>&1", kKernelFolder, program);
  FILE* pipe = popen(command.c_str(), "r");
  std::string log;
  for (int c = 0; (c = std::fgetc(pipe)) != EOF;) log.push_back(static_cast<char>(c));
  if (pclose(pipe) != 0) return internal_error("{} does not compile: {}", program, log);
  return log;
}

// Kernels that use all registers and keep some bytes elsewhere while they end a tile, outside of their loops; the next
// two by NVRTC 13.0 only, a word; then one with seven words of a warpgroup with 160 sums and scores a thread. The last
// three keep four words of the warp that loads, which has 40 registers.
constexpr const char* kSpillingKernels[] = {"linear_int8_n256",
                                            "linear_int4_n256",
                                            "linear_int4_g32_n256",
                                            "quantize_rows_f32_2",
                                            "quantize_rows_f32_4",
                                            "attention_latent_wgmma_int8",
                                            "attention_prefill_wgmma_int8_d64",
                                            "attention_prefill_wgmma_int8_d128",
                                            "attention_latent_wgmma"};
constexpr int kMaxSpillBytes = 128;  // loads and stores

void check_usage(std::string_view program, const std::string& log) {
  const std::map<std::string, KernelUsage> usages = parse_ptxas_log(log);
  INFO(std::string(program), "\n", log);
  // Of products on wgmma that ptxas lets wait for each other it says so, and the kernel is right and slow.
  CHECK(log.find("instructions are serialized") == std::string::npos);
  for (const KernelInfo& kernel : kKernels) {
    if (kernel.program != program) continue;
    INFO(std::string(kernel.function));
    REQUIRE(usages.contains(kernel.function));
    const KernelUsage& usage = usages.at(kernel.function);
    CHECK(usage.registers > 0);
    const bool may_spill =
        std::ranges::find(kSpillingKernels, std::string_view(kernel.function)) != std::ranges::end(kSpillingKernels);
    CHECK(usage.spill_bytes <= (may_spill ? kMaxSpillBytes : 0));
    CHECK(usage.stack_bytes <= (may_spill ? kMaxSpillBytes : 0));
    std::printf("%-34s %3d registers\n", kernel.function, usage.registers);
  }
}

// Only Hopper and later start a kernel before the one before it has ended.
void check_programs(std::string_view architecture) {
  const Result<const NvrtcApi*> nvrtc = nvrtc_api();
  const std::filesystem::path nvcc = find_nvcc();
  if (!nvrtc.ok() && nvcc.empty()) return skip_test("NVRTC is not installed, nor nvcc: " + nvrtc.status().message());
  const KernelSources sources = KernelSources::load("").value();
  const TempDir folder;
  write_sources(folder.path());
  for (const std::string_view program : programs_for(architecture)) {
    std::string log, ptx;
    if (nvrtc.ok()) {
      const Result<CompiledProgram> compiled =
          compile_program(**nvrtc, sources, program, architecture, /*with_log=*/true);
      REQUIRE_MESSAGE(compiled.ok(), compiled.status().message());
      CHECK(compiled->cubin.substr(1, 3) == "ELF");
      log = compiled->log;
      ptx = compiled->ptx;
    } else {
      const Result<std::string> compiled = compile_with_nvcc(nvcc, folder.path(), program, architecture);
      REQUIRE_MESSAGE(compiled.ok(), compiled.status().message());
      log = *compiled;
      ptx = read_file_or_die(folder.path() / (std::filesystem::path(program).stem().string() + ".ptx"));
    }
    check_usage(program, log);
    if (architecture == kHopper) check_waits(program, ptx);
  }
}

TEST_CASE("every kernel compiles for sm_90a without spills or local memory, and waits") { check_programs(kHopper); }
TEST_CASE("every kernel that Ampere has compiles for it without spills or local memory") { check_programs(kAmpere); }

TEST_CASE("a path that reads, writes or ends before it waits is found") {
  const auto kernel = [](std::string_view body) {
    return fmt::format(
        ".visible .entry other(\n)\n{{\n\tret;\n}}\n.visible .entry k(\n\t.param .u64 k_param_0\n)\n{{\n{}}}\n", body);
  };
  const char* wait = "\tgriddepcontrol.wait;\n";
  const std::string good = fmt::format(
      "\tld.param.u64 %rd1, [k_param_0];\n\tld.global.nc.v4.u32 {{%r1,%r2,%r3,%r4}}, [%rd2];\n"
      "\t@%p1 bra $L__BB1_2;\n{}\tst.global.u32 [%rd1], %r1;\n\tret;\n$L__BB1_2:\n{}\tld.u32 %r1, [%rd1];\n\tret;\n",
      wait, wait);
  CHECK(access_before_wait(kernel(good), "k") == "");
  // Each wait of the two branches is needed.
  for (const size_t from : {size_t{0}, good.find(wait) + 1}) {
    std::string bad = good;
    bad.erase(bad.find(wait, from), std::string_view(wait).size());
    CHECK(access_before_wait(kernel(bad), "k") != "");
  }
  CHECK(access_before_wait(kernel("\tret;\n"), "k") == "ret");
  CHECK(access_before_wait(kernel(fmt::format("\t@%p1 ret;\n{}\tret;\n", wait)), "k") == "ret");
  CHECK(access_before_wait(kernel(fmt::format("\tatom.global.add.u32 %r1, [%rd1], 1;\n{}\tret;\n", wait)), "k") ==
        "atom.global.add.u32 %r1, [%rd1], 1");
  CHECK(access_before_wait(kernel(fmt::format("\tcall.uni f, (a);\n{}\tret;\n", wait)), "k") == "call.uni f, (a)");
  CHECK(access_before_wait(kernel(good), "absent") == "no kernel absent");
  // Copies of five dimensions: of keys; of weights in the one kernel that has them so.
  const std::string copy =
      "\tcp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1], [%r2];\n";
  CHECK(access_before_wait(kernel(copy + wait + "\tret;\n"), "k") != "");
  // Copies by threads, which may be of anything but in linear_chain, expert_chain and norms.
  const std::string by_threads = "\tcp.async.cg.shared.global [%r1], [%rd1], 16;\n";
  CHECK(access_before_wait(kernel(by_threads + wait + "\tret;\n"), "k") != "");
  // A loop of one assembly statement ends by itself; a jump to a label that is nowhere is not followed.
  const std::string spin =
      "\t{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%r1], %r2; @!done bra again; }\n";
  CHECK(access_before_wait(kernel(spin + wait + "\tret;\n"), "k") == "");
  CHECK(access_before_wait(kernel(spin + "\tret;\n" + wait), "k") != "");
  CHECK(access_before_wait(kernel(std::string("\t@%p1 bra $nowhere;\n") + wait + "\tret;\n"), "k") != "");
}

TEST_CASE("a program that does not compile says where") {
  Result<const NvrtcApi*> nvrtc = nvrtc_api();
  if (!nvrtc.ok()) return skip_test(nvrtc.status().message());
  const TempDir folder;
  std::ofstream(folder.path() / "broken.cu") << "__global__ void broken() { undeclared = 1; }\n";
  const KernelSources sources = KernelSources::load(folder.path().string()).value();
  const Result<CompiledProgram> compiled = compile_program(**nvrtc, sources, "broken.cu", kHopper);
  REQUIRE(!compiled.ok());
  CHECK(compiled.status().message().find("undeclared") != std::string::npos);
}

}  // namespace
}  // namespace spate::cuda
