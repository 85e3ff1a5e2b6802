// ReleaseTickets: keeps blocks from the pool while something that the host does not wait for uses them. A ticket is the
// end of one such thing: of a step in flight, or of a transfer of the blocks' contents to another place.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv_cache/block_pool.h"

namespace spate {

struct ReleaseTicket {
  uint64_t id = 0;  // 0: none; nothing waits for it
  bool operator==(const ReleaseTicket&) const = default;
};

// Owned by KvCache; engine thread only. A block is back in the pool when no lease of it is left, in whatever hands: so
// one that waits for several tickets comes back with the last of them.
class ReleaseTickets {
 public:
  enum class Kind : uint8_t { kStep, kTransfer };
  struct Open {
    ReleaseTicket ticket;
    Kind kind = Kind::kStep;
    std::vector<BlockLease> leases;  // in the order of their release
  };

  ReleaseTicket open(Kind kind);
  // Releases the leases, last one first, when the ticket is dropped; at once where it is dropped already.
  void keep(ReleaseTicket ticket, std::vector<BlockLease>&& leases);
  void drop(ReleaseTicket ticket);  // must be open
  void drop_all(Kind kind);

  std::span<const Open> all() const { return open_; }  // oldest first
  int num_open(Kind kind) const;

 private:
  std::vector<Open>::iterator find(ReleaseTicket ticket);

  std::vector<Open> open_;  // a few: two steps and the transfers
  uint64_t last_id_ = 0;
};

}  // namespace spate
