// ReferenceRun: what a model predicted at some positions of some token sequences, and the file that keeps it.
//
// The file has the tokens themselves, so a later run needs neither the texts nor the questions. Little-endian, no padding:
//
//   bytes  0  "SPATEREF"
//          8  u32 version, 1
//         12  u32 vocab_size           rows of the model's lm_head
//         16  u64 tokenizer_hash       XXH3 of the vocabulary's strings
//         24  u32 num_top              most probable tokens kept of each position, 1 to 20
//         28  u32 num_pieces
//         32  u64 payload_hash         XXH3 of everything behind byte 40
//         40  the pieces, one behind the other:
//             u32 kind                 0 text, 1 answers
//             u32 num_tokens, u32 first_scored           0 < first_scored < num_tokens
//             i32 token_ids            [num_tokens]
//             f32 logprobs             [num_tokens - first_scored] of the token that follows
//             i32 top_ids, f32 top_logprobs  [num_tokens - first_scored, num_top] descending
//
// A position takes 8 + 8 * num_top bytes: 168 with 20 top tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/status.h"
#include "core/step_executor.h"

namespace spate {

enum class PieceKind : uint32_t { kText, kAnswers };

struct ReferencePiece {
  PieceKind kind = PieceKind::kText;
  std::vector<int32_t> token_ids;
  int first_scored = 1;                 // tokens from here on were predicted; those before are their context
  std::vector<TokenLogprobs> logprobs;  // [num_tokens - first_scored]
};

struct ReferenceRun {
  int vocab_size = 0;
  uint64_t tokenizer_hash = 0;
  int num_top = 0;
  std::vector<ReferencePiece> pieces;
};

// Replaces the file when all of it is written.
Status write_reference(const std::filesystem::path& file, const ReferenceRun& run);

// The file may be anybody's: what cannot be a reference, or is one of another vocabulary or tokenizer, ends in a Status that
// says what was found.
Result<ReferenceRun> read_reference(const std::filesystem::path& file, int vocab_size, uint64_t tokenizer_hash);

}  // namespace spate
