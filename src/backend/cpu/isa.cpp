#include "backend/cpu/isa.h"

#include <fmt/ranges.h>

#include <vector>

#include "backend/cpu/cpu_device.h"

namespace spate::cpu {
namespace {

size_t find_best() {
  const std::span<const Isa> isas = all_isas();
  size_t best = isas.size() - 1;
  while (best > 0 && !isas[best].is_preferred()) --best;
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
    if (i == best_index() || all_isas()[i].is_present()) return &all_isas()[i];
    std::vector<std::string_view> present;
    for (const Isa& isa : all_isas()) {
      if (isa.is_present()) present.push_back(isa.name);
    }
    return invalid_argument("instruction set {}: this machine has only {}", cap, fmt::join(present, ", "));
  }
  return invalid_argument("instruction set '{}' is unknown: use one of {}", cap, fmt::join(kCpuInstructionSets, ", "));
}

}  // namespace spate::cpu
