// Goal    Every entry is complete and keeps what it says; a name that is wrong or cannot run is refused in one line.
// Method  The entries themselves, on whatever this machine has.
#include "backend/registry/registry.h"

#include <set>

#include "base/test.h"

namespace spate {

TEST_CASE("registry: every entry is complete, and its devices bear its name") {
  std::set<std::string_view> names;
  for (const BackEnd& back_end : back_ends()) {
    CAPTURE(back_end.name);
    CHECK(names.insert(back_end.name).second);
    CHECK(find_back_end(back_end.name) == &back_end);
    CHECK(!back_end.hardware.empty());
    CHECK(back_end.max_ranks >= 1);
    CHECK((back_end.make_group != nullptr) == (back_end.max_ranks > 1));
    CHECK(back_end.defaults.max_num_seqs > 0);
    CHECK(back_end.defaults.max_num_batched_tokens >= back_end.defaults.max_num_seqs);
    CHECK(back_end.defaults.max_num_logits > 0);
    CHECK(back_end.defaults.memory_share > 0);
    CHECK(back_end.defaults.memory_share <= 1);
    const Status available = back_end.probe({});
    if (!available.ok()) {
      CHECK(available.message().find('\n') == std::string::npos);
      CHECK_FALSE(back_end.make_device({}).ok());
      CHECK(choose_back_end(back_end.name, {}).status().message().find("--device") != std::string::npos);
      continue;
    }
    CHECK(*choose_back_end(back_end.name, {}) == &back_end);
    const auto device = back_end.make_device({.num_threads = 1});
    REQUIRE_MESSAGE(device.ok(), device.status().to_string());
    CHECK((*device)->kind() == back_end.name);
    for (const std::string_view isa : back_end.instruction_sets) {
      // The machine may lack it, but the back-end must know the name.
      const auto capped = back_end.make_device({.num_threads = 1, .isa = std::string(isa)});
      if (!capped.ok()) CHECK(capped.status().message().find("this machine has only") != std::string::npos);
    }
  }
}

TEST_CASE("registry: the host's back-end runs everywhere, and auto finds something") {
  CHECK(host_back_end().probe({}).ok());
  CHECK(host_back_end().shares_host_memory);
  const auto chosen = choose_back_end("auto", {});
  REQUIRE(chosen.ok());
  CHECK((*chosen)->is_automatic);
  CHECK((*chosen)->probe({}).ok());
}

TEST_CASE("registry: an unknown name is refused with those that there are") {
  CHECK(find_back_end("abacus") == nullptr);
  const Status refused = choose_back_end("abacus", {}).status();
  CHECK(refused.code() == StatusCode::kInvalidArgument);
  CHECK(refused.message() == "--device abacus: there is auto, " + back_end_names(", "));
}

TEST_CASE("machine limits: what a back-end measures, or nothing where it cannot run here") {
  for (const BackEnd& back_end : back_ends()) {
    if (back_end.measure_limits == nullptr) continue;
    INFO(std::string(back_end.name));
    // With a cap on the instruction set, the rates are those of that set: of the baseline, no products of bf16.
    const std::string isa = back_end.instruction_sets.empty() ? "" : std::string(back_end.instruction_sets.front());
    const MachineLimits limits = back_end.measure_limits({.num_threads = 1, .isa = isa});
    if (!back_end.probe({}).ok()) {
      CHECK(limits.rates.empty());
      CHECK(limits.memory_bytes_per_s == 0);
      continue;
    }
    CHECK(limits.memory_bytes_per_s > 1e9);
    CHECK(limits.float_flops_per_s > 1e9);
    CHECK(limits.int8_ops_per_s >= limits.float_flops_per_s);
    if (!isa.empty()) CHECK(limits.units == ProductUnits::kOther);
    CHECK(limits.rates[0].name == "memory-read");
    CHECK(limits.rates[0].per_s == limits.memory_bytes_per_s);
    for (const MachineLimits::Rate& rate : limits.rates) {
      if (rate.name == "vector-bf16" || rate.name == "amx-bf16") CHECK(rate.per_s == 0);
    }
  }
}

TEST_CASE("machine limits: the larger of each figure") {
  const MachineLimits a{.memory_bytes_per_s = 2,
                        .float_flops_per_s = 5,
                        .int8_ops_per_s = 7,
                        .rates = {{"x", 2, "GB/s"}, {"y", 5, "GOP/s"}}};
  const MachineLimits b{.memory_bytes_per_s = 3,
                        .float_flops_per_s = 4,
                        .int8_ops_per_s = 9,
                        .rates = {{"x", 3, "GB/s"}, {"y", 4, "GOP/s"}}};
  const MachineLimits larger = larger_limits(a, b);
  CHECK(larger.memory_bytes_per_s == 3);
  CHECK(larger.float_flops_per_s == 5);
  CHECK(larger.int8_ops_per_s == 9);
  CHECK(larger.rates[0].per_s == 3);
  CHECK(larger.rates[1].per_s == 5);
  CHECK(larger_limits({}, b).rates.size() == 2);
  CHECK(larger_limits(a, {}).memory_bytes_per_s == 2);
}

}  // namespace spate
