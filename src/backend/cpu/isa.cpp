#include "backend/cpu/isa.h"

#include <fmt/ranges.h>

#include "backend/cpu/cpu_device.h"

namespace spate::cpu {
namespace {

size_t find_best() {
  const std::span<const Isa> isas = all_isas();
  size_t best = 0;
  while (best + 1 < isas.size() && isas[best + 1].is_present()) ++best;
  return best;
}

size_t best_index() {
  static const size_t best = find_best();
  return best;
}

}  // namespace

const Isa& best_isa() { return all_isas()[best_index()]; }

Result<const Isa*> choose_isa(const std::string& cap) {
  if (cap.empty()) return &best_isa();
  for (size_t i = 0; i < all_isas().size(); ++i) {
    if (cap != all_isas()[i].name) continue;
    if (i <= best_index()) return &all_isas()[i];
    return invalid_argument("instruction set {}: this machine has only {}", cap, best_isa().name);
  }
  return invalid_argument("instruction set '{}' is unknown: use one of {}", cap, fmt::join(kCpuInstructionSets, ", "));
}

}  // namespace spate::cpu
