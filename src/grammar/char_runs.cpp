#include "grammar/char_runs.h"

#include <algorithm>
#include <array>
#include <utility>

#include "grammar/nfa.h"

namespace spate {
namespace {

constexpr int kEndless = 255;  // a run's length: as long as any token, TokenTrie::Node::max_chars

}  // namespace

// Whether each character that is begun and lacks `num_missing` bytes, the next of them in [low, high], leads to
// `target`.
bool CharRuns::completes_chars(int32_t open, int num_missing, int low, int high, int32_t target) {
  if (open == ParseStates::kDead || states_.accepts(open)) return false;
  int32_t checked = ParseStates::kDead;
  for (int byte = low; byte <= high; ++byte) {
    const int32_t next = states_.next(open, static_cast<uint8_t>(byte));
    if (num_missing == 1 ? next != target
                         : next != checked && !completes_chars(next, num_missing - 1, 0x80, 0xBF, target)) {
      return false;
    }
    checked = next;
  }
  return true;
}

// Whether every character that is not ASCII leads from `state` to `target`.
bool CharRuns::takes_wide_chars(int32_t state, int32_t target) {
  struct Leads {
    int first, last, num_missing, low, high;
  };
  static constexpr Leads kLeads[] = {{0xC2, 0xDF, 1, 0x80, 0xBF}, {0xE0, 0xE0, 2, 0xA0, 0xBF},
                                     {0xE1, 0xEC, 2, 0x80, 0xBF}, {0xED, 0xED, 2, 0x80, 0x9F},
                                     {0xEE, 0xEF, 2, 0x80, 0xBF}, {0xF0, 0xF0, 3, 0x90, 0xBF},
                                     {0xF1, 0xF3, 3, 0x80, 0xBF}, {0xF4, 0xF4, 3, 0x80, 0x8F}};
  return std::ranges::all_of(kLeads, [&](const Leads& leads) {
    int32_t checked = ParseStates::kDead;
    for (int byte = leads.first; byte <= leads.last; ++byte) {
      const int32_t open = states_.next(state, static_cast<uint8_t>(byte));
      if (open != checked && !completes_chars(open, leads.num_missing, leads.low, leads.high, target)) return false;
      checked = open;
      if (open == ParseStates::kDead) return false;
    }
    return true;
  });
}

CharRuns::Run* CharRuns::find(int32_t state) {
  const auto index = static_cast<size_t>(state);
  return index < run_by_state_.size() ? run_by_state_[index] : nullptr;
}

CharRuns::Run& CharRuns::uncounted_at(int32_t state) {
  if (Run* known = find(state)) return *known;
  const auto index = static_cast<size_t>(state);
  // The situation to which most characters of ASCII lead.
  std::array<int32_t, 128> targets;
  std::vector<std::pair<int32_t, int>> counts;
  for (int byte = 0; byte < 128; ++byte) {
    const int32_t next = targets[static_cast<size_t>(byte)] = states_.next(state, static_cast<uint8_t>(byte));
    if (next == ParseStates::kDead) continue;
    const auto known = std::ranges::find(counts, next, &std::pair<int32_t, int>::first);
    if (known == counts.end()) {
      counts.emplace_back(next, 1);
    } else {
      ++known->second;
    }
  }
  Run run;
  if (!counts.empty()) {
    run.next = std::ranges::max_element(counts, {}, &std::pair<int32_t, int>::second)->first;
    for (int byte = 0; byte < 128; ++byte) {
      if (targets[static_cast<size_t>(byte)] == run.next) run.chars.ascii.add(byte);
    }
    run.chars.has_wide_chars = takes_wide_chars(state, run.next);
  }
  runs_.push_back(run);
  run_by_state_.resize(std::max(run_by_state_.size(), states_.num_states()));
  run_by_state_[index] = &runs_.back();
  return runs_.back();
}

const CharRuns::Run& CharRuns::at(int32_t state) {
  Run& run = uncounted_at(state);
  if (run.length >= 0) return run;
  int length = 0, length_inside = 0;
  int32_t here = state;
  for (const Run* link = &run; length < kLookAheadBytes && link->next != ParseStates::kDead;) {
    if (!link->chars.contains(run.chars)) break;
    ++length;
    if (length_inside == length - 1 && !states_.accepts(link->next)) length_inside = length;
    if (link->next == here) {
      if (length_inside == length) length_inside = kEndless;
      length = kEndless;
      break;
    }
    here = link->next;
    link = &uncounted_at(here);
  }
  run.length = length;
  run.length_inside = length_inside;
  return run;
}

}  // namespace spate
