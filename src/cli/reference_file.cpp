#include "cli/reference_file.h"

#include <xxhash.h>

#include <cstring>
#include <fstream>
#include <string>
#include <string_view>

#include "core/step_plan.h"
#include "weights/file_text.h"

namespace spate {
namespace {

constexpr std::string_view kMagic = "SPATEREF";
constexpr uint32_t kFormatVersion = 1;
constexpr size_t kHeaderBytes = 40;
constexpr float kMaxLogprob = 1e-3f;  // log-probabilities are at most 0, but for rounding
constexpr int64_t kMaxFileBytes = int64_t{1} << 30;

template <typename T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

std::string payload_of(const ReferenceRun& run) {
  std::string out;
  for (const ReferencePiece& piece : run.pieces) {
    append(out, static_cast<uint32_t>(piece.kind));
    append(out, static_cast<uint32_t>(piece.token_ids.size()));
    append(out, static_cast<uint32_t>(piece.first_scored));
    for (const int32_t id : piece.token_ids) append(out, id);
    for (const TokenLogprobs& position : piece.logprobs) append(out, position.logprob);
    for (const TokenLogprobs& position : piece.logprobs) {
      for (const TokenLogprobs::Top& top : position.top) append(out, top.token_id);
    }
    for (const TokenLogprobs& position : piece.logprobs) {
      for (const TokenLogprobs::Top& top : position.top) append(out, top.logprob);
    }
  }
  return out;
}

// Takes values off the front of the bytes, and counts where it is.
class Cursor {
 public:
  Cursor(std::string_view bytes, size_t position) : bytes_(bytes), position_(position) {}

  bool has(uint64_t count) const { return count <= bytes_.size() - position_; }
  size_t position() const { return position_; }
  size_t rest() const { return bytes_.size() - position_; }
  template <typename T>
  T take() {
    T value;
    std::memcpy(&value, bytes_.data() + position_, sizeof value);
    position_ += sizeof value;
    return value;
  }

 private:
  std::string_view bytes_;
  size_t position_;
};

struct Header {
  uint32_t vocab_size, num_top, num_pieces;
  uint64_t tokenizer_hash, payload_hash;
};

Result<Header> read_header(std::string_view bytes) {
  if (bytes.size() < kHeaderBytes || bytes.substr(0, kMagic.size()) != kMagic) {
    return data_loss("not a reference file of `spate eval --write-reference`: it has {} bytes and begins with other than {}",
                     bytes.size(), kMagic);
  }
  Cursor cursor(bytes, kMagic.size());
  const auto version = cursor.take<uint32_t>();
  if (version != kFormatVersion)
    return data_loss("reference version {}; this program reads {}", version, kFormatVersion);
  Header header;
  header.vocab_size = cursor.take<uint32_t>();
  header.tokenizer_hash = cursor.take<uint64_t>();
  header.num_top = cursor.take<uint32_t>();
  header.num_pieces = cursor.take<uint32_t>();
  header.payload_hash = cursor.take<uint64_t>();
  return header;
}

Status check_header(const Header& header, int vocab_size, uint64_t tokenizer_hash) {
  if (header.vocab_size != static_cast<uint32_t>(vocab_size)) {
    return invalid_argument("made by a model of {} tokens; this model has {}", header.vocab_size, vocab_size);
  }
  if (header.tokenizer_hash != tokenizer_hash) {
    return invalid_argument("made with another tokenizer: its vocabulary has hash {:016x}, this model's has {:016x}",
                            header.tokenizer_hash, tokenizer_hash);
  }
  if (header.num_top < 1 || header.num_top > static_cast<uint32_t>(kMaxLogprobs)) {
    return data_loss("{} top tokens a position; 1 to {} are possible", header.num_top, kMaxLogprobs);
  }
  return ok_status();
}

Result<int32_t> take_token(Cursor& cursor, uint32_t vocab_size) {
  const size_t position = cursor.position();
  const auto id = cursor.take<int32_t>();
  if (id < 0 || static_cast<uint32_t>(id) >= vocab_size) {
    return data_loss("byte {}: token {} is outside the vocabulary of {}", position, id, vocab_size);
  }
  return id;
}

Result<float> take_logprob(Cursor& cursor) {
  const size_t position = cursor.position();
  const auto logprob = cursor.take<float>();
  if (!(logprob <= kMaxLogprob)) return data_loss("byte {}: log-probability {}", position, logprob);
  return logprob;
}

Result<ReferencePiece> read_piece(Cursor& cursor, const Header& header) {
  const size_t begin = cursor.position();
  if (!cursor.has(12)) return data_loss("cut at byte {}, in a piece's head", begin);
  ReferencePiece piece;
  const auto kind = cursor.take<uint32_t>();
  if (kind > static_cast<uint32_t>(PieceKind::kAnswers)) return data_loss("byte {}: kind {}; 0 and 1 exist", begin, kind);
  piece.kind = static_cast<PieceKind>(kind);
  const auto num_tokens = cursor.take<uint32_t>(), first_scored = cursor.take<uint32_t>();
  if (first_scored < 1 || first_scored >= num_tokens) {
    return data_loss("byte {}: predictions from token {} of {}", begin, first_scored, num_tokens);
  }
  const uint64_t num_positions = num_tokens - first_scored;
  const uint64_t num_bytes = 4 * uint64_t{num_tokens} + num_positions * (4 + 8 * uint64_t{header.num_top});
  if (!cursor.has(num_bytes)) {
    return data_loss("cut: the piece at byte {} needs {} bytes more, {} are there", begin, num_bytes, cursor.rest());
  }
  piece.first_scored = static_cast<int>(first_scored);
  piece.token_ids.resize(num_tokens);
  for (int32_t& id : piece.token_ids) {
    ASSIGN_OR_RETURN(id, take_token(cursor, header.vocab_size));
  }
  piece.logprobs.resize(num_positions);
  for (size_t i = 0; i < num_positions; ++i) {
    TokenLogprobs& position = piece.logprobs[i];
    position.token_id = piece.token_ids[first_scored + i];
    position.top.resize(header.num_top);
    ASSIGN_OR_RETURN(position.logprob, take_logprob(cursor));
  }
  for (TokenLogprobs& position : piece.logprobs) {
    for (TokenLogprobs::Top& top : position.top) {
      ASSIGN_OR_RETURN(top.token_id, take_token(cursor, header.vocab_size));
    }
  }
  for (TokenLogprobs& position : piece.logprobs) {
    for (TokenLogprobs::Top& top : position.top) {
      ASSIGN_OR_RETURN(top.logprob, take_logprob(cursor));
    }
  }
  return piece;
}

Result<ReferenceRun> parse_reference(std::string_view bytes, int vocab_size, uint64_t tokenizer_hash) {
  ASSIGN_OR_RETURN(const Header header, read_header(bytes));
  RETURN_IF_ERROR(check_header(header, vocab_size, tokenizer_hash));
  ReferenceRun run{.vocab_size = vocab_size, .tokenizer_hash = tokenizer_hash, .num_top = static_cast<int>(header.num_top), .pieces = {}};
  Cursor cursor(bytes, kHeaderBytes);
  for (uint32_t i = 0; i < header.num_pieces; ++i) {
    ASSIGN_OR_RETURN(ReferencePiece piece, read_piece(cursor, header));
    run.pieces.push_back(std::move(piece));
  }
  if (cursor.rest() != 0) return data_loss("{} bytes behind the last of {} pieces", cursor.rest(), header.num_pieces);
  const uint64_t hash = XXH3_64bits(bytes.data() + kHeaderBytes, bytes.size() - kHeaderBytes);
  if (hash != header.payload_hash) {
    return data_loss("damaged: the contents have hash {:016x}, the header says {:016x}", hash, header.payload_hash);
  }
  return run;
}

}  // namespace

Status write_reference(const std::filesystem::path& file, const ReferenceRun& run) {
  const std::string payload = payload_of(run);
  std::string header(kMagic);
  append(header, kFormatVersion);
  append(header, static_cast<uint32_t>(run.vocab_size));
  append(header, run.tokenizer_hash);
  append(header, static_cast<uint32_t>(run.num_top));
  append(header, static_cast<uint32_t>(run.pieces.size()));
  append(header, static_cast<uint64_t>(XXH3_64bits(payload.data(), payload.size())));
  std::filesystem::path part = file;
  part += ".part";
  std::ofstream out(part, std::ios::binary);
  out << header << payload;
  out.close();
  std::error_code error;
  if (out) std::filesystem::rename(part, file, error);
  if (!out || error) {
    std::error_code ignored;
    std::filesystem::remove(part, ignored);
    return data_loss("{}: cannot be written ({} bytes); is the folder there and the disk not full?", file.string(),
                     header.size() + payload.size());
  }
  return ok_status();
}

Result<ReferenceRun> read_reference(const std::filesystem::path& file, int vocab_size, uint64_t tokenizer_hash) {
  ASSIGN_OR_RETURN(const std::string bytes, read_text_file(file, kMaxFileBytes));
  auto run = parse_reference(bytes, vocab_size, tokenizer_hash);
  if (!run.ok()) return run.status().with_context(file.string());
  return run;
}

}  // namespace spate
