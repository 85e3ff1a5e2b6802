// ParseStates: runs a Grammar over bytes. Numbers every situation that it meets, so that the next byte of a known one
// is a table look-up.
//
// A situation is a set of items (state of a rule, return): all ways in which the text so far can be read at once. A
// return is a set of frames (place, return): where it goes on when the rule ends. Returns are numbered by content, and
// those of a call are gathered before the called rule starts. So the ways that differ in the past only are one item,
// the work of a step is bounded by the grammar's size and not by the number of ways, and the same place in a text of
// the same nesting is the same situation. A frame behind which its own rule has nothing left is replaced by the frames
// of its return: lists that are written by recursion stay flat.
//
// One thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "grammar/grammar.h"

namespace spate {

class ParseStates {
 public:
  static constexpr int32_t kDead = 0;  // no text goes on from here

  explicit ParseStates(std::shared_ptr<const Grammar> grammar);

  int32_t initial() const { return initial_; }
  int32_t next(int32_t state, uint8_t byte) {
    const ByteTable* table = tables_[static_cast<size_t>(state)].get();
    const int32_t known = table != nullptr ? (*table)[byte] : kUnknown;
    return known != kUnknown ? known : find_next(state, byte);
  }
  bool accepts(int32_t state) const { return flags_[static_cast<size_t>(state)].accepts; }  // the text is complete
  bool has_next(int32_t state) const { return flags_[static_cast<size_t>(state)].has_next; }

  // The only byte that the text can go on with; -1: it may end, or there are several.
  int forced_byte(int32_t state) const;

  // A situation from which the same texts of up to kLookAheadBytes lead on.
  int32_t alike(int32_t state);

  // The texts that lead on from a situation are those of its parts, one for each return. `local` is where its items
  // stand if the whole text ended with their rule, so it accepts where the rule ends; there `rest` goes on. Situations
  // of any nesting have the same few `local`.
  struct Part {
    int32_t local = kDead, rest = kDead;
  };
  // Kept; valid until keep_only().
  std::span<const Part> parts_of(int32_t state);

  size_t num_states() const { return states_.size(); }
  // Units of work since the start: items looked at. Whoever gives a limit gets kDead for what lies beyond it.
  int64_t work() const { return work_; }
  void set_work_limit(int64_t limit) { work_limit_ = limit; }
  bool is_over_limit() const { return work_ > work_limit_; }

  // Room for so many situations, so that none of them waits for all to be moved.
  void reserve(size_t num_states);
  // Forgets all situations but these; gives their new numbers in place.
  void keep_only(std::span<int32_t* const> states);

 private:
  static constexpr int32_t kUnknown = -1;
  static constexpr uint32_t kTextEnd = UINT32_MAX;  // a frame's place: the whole text ends here
  using ByteTable = std::array<int32_t, 256>;
  // An item or a frame: (state or place) << 32 | return.
  using Pair = uint64_t;
  using PairSet = std::vector<Pair>;  // sorted
  static Pair make_pair(uint32_t first, uint32_t ret) { return uint64_t{first} << 32 | ret; }
  static uint32_t first_of(Pair pair) { return static_cast<uint32_t>(pair >> 32); }
  static uint32_t return_of(Pair pair) { return static_cast<uint32_t>(pair); }

  struct State {
    PairSet key;    // items reached by reading, before calls; accepts is a pair of kTextEnd
    PairSet items;  // all that can read a byte
  };
  struct Flags {
    bool accepts = false, has_next = false;
  };
  struct PairSetHash {
    size_t operator()(const PairSet& set) const;
  };
  using Numbers = std::unordered_map<PairSet, uint32_t, PairSetHash>;

  int32_t find_next(int32_t state, uint8_t byte);
  void begin_step();
  void add_place(uint32_t place_id, uint32_t ret, PairSet& key);
  void add_states(const Grammar::Place& place, uint32_t ret, PairSet& key);
  void pop(uint32_t ended, PairSet& key);
  int32_t number_of(PairSet key);
  void add_state(State state);
  void add_calls(State& state);
  uint32_t number_of_return(PairSet frames);

  const std::shared_ptr<const Grammar> grammar_;
  std::vector<State> states_;
  // Also by state, and apart: all that known texts ask for. That of many sequences fits into a cache.
  std::vector<std::unique_ptr<ByteTable>> tables_;  // null where nothing is known
  std::vector<Flags> flags_;
  Numbers state_numbers_;
  std::vector<PairSet> returns_;
  Numbers return_numbers_;
  std::vector<uint32_t> like_returns_;  // by return, as far as found
  std::vector<int32_t> rests_;          // by return: the situation behind it; kUnknown
  std::vector<std::unique_ptr<const std::vector<Part>>> parts_;  // by state; null where not known
  int32_t initial_ = kDead;
  int64_t work_ = 0;
  int64_t work_limit_ = INT64_MAX;
  uint64_t step_ = 0;
  std::vector<uint64_t> popped_in_;  // by return: the step in which it was popped last
  std::vector<uint32_t> to_pop_;     // scratch of pop()
};

}  // namespace spate
