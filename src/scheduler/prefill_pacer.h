// PrefillPacer: how many prompt tokens a step may take while others decode, so that no running stream waits longer than
// max_stall for its next token, or twice as long as decoding alone takes, if that is more. Where more sequences wait
// for their first token than run, the stall is that many times as long, at most kMaxFactor: it holds up few and
// shortens the wait of many. It learns what a decode step and a prompt token cost from the steps that were collected.
// Products of many tokens come in tiles, on a GPU of 256: a paced step of several has whole ones.
//
// Owned by the scheduler, engine thread only.
#pragma once

#include <cstddef>

namespace spate {

class PrefillPacer {
 public:
  // max_stall_seconds 0: no limit. max_tokens: of a step.
  PrefillPacer(double max_stall_seconds, int max_tokens) : max_stall_seconds_(max_stall_seconds), max_tokens_(max_tokens) {}

  // A step ran: sequences that decoded, prompt tokens beside them, the seconds it took (0: not known).
  void record(int num_decode_tokens, int num_prefill_tokens, double seconds);
  // Prompt tokens for a step in which so many sequences decode, with num_decode_tokens, while others wait for their
  // first token: at least kMinTokens, so that prompts always move.
  int max_prefill_tokens(size_t num_decoding, int num_decode_tokens, size_t num_waiting) const;

  static constexpr int kMinTokens = 16;
  static constexpr int kTileTokens = 256, kFewestTiles = 4;
  static constexpr double kMaxFactor = 4;

 private:
  double max_stall_seconds_;
  int max_tokens_;
  double decode_seconds_ = 0;             // of a step without prompts; 0: none was seen
  double seconds_per_prefill_token_ = 0;  // beyond that; 0: none was seen
};

}  // namespace spate
