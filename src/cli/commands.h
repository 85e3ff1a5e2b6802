// One function a command. Each prints its own result and gives the exit code, or a Status that main() prints.
#pragma once

#include "base/status.h"
#include "cli/arguments.h"

namespace spate {

Result<int> run_serve(const Arguments& arguments);
Result<int> run_deployment(const Arguments& arguments);
Result<int> run_chat(const Arguments& arguments);
Result<int> run_generate(const Arguments& arguments);
Result<int> run_eval(const Arguments& arguments);
Result<int> run_quantize(const Arguments& arguments);
Result<int> run_inspect(const Arguments& arguments);
Result<int> run_self_test(const Arguments& arguments);
Result<int> run_kernels(const Arguments& arguments);
Result<int> run_kernels_tune(const Arguments& arguments);
Result<int> run_bench(const Arguments& arguments);

// The subcommands of bench.
Result<int> run_bench_latency(const Arguments& arguments);
Result<int> run_bench_throughput(const Arguments& arguments);
Result<int> run_bench_limits(const Arguments& arguments);
Result<int> run_bench_grammar(const Arguments& arguments);
Result<int> run_bench_speculation(const Arguments& arguments);
Result<int> run_bench_table(const Arguments& arguments);
Result<int> run_bench_kernel(const Arguments& arguments);
Result<int> run_bench_serve(const Arguments& arguments);

}  // namespace spate
