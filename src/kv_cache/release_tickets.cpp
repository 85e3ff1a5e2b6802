#include "kv_cache/release_tickets.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace spate {
namespace {

void release_in_order(std::vector<BlockLease>& leases) {
  for (BlockLease& lease : leases) lease.reset();
}

}  // namespace

ReleaseTicket ReleaseTickets::open(Kind kind) {
  open_.push_back({.ticket = {++last_id_}, .kind = kind, .leases = {}});
  return open_.back().ticket;
}

void ReleaseTickets::keep(ReleaseTicket ticket, std::vector<BlockLease>&& leases) {
  CHECK(ticket.id <= last_id_, "ticket {} of {}", ticket.id, last_id_);
  const auto it = find(ticket);
  if (it == open_.end()) return release_in_reverse(leases);
  for (; !leases.empty(); leases.pop_back()) it->leases.push_back(std::move(leases.back()));
}

void ReleaseTickets::drop(ReleaseTicket ticket) {
  const auto it = find(ticket);
  CHECK(it != open_.end(), "ticket {} is not open", ticket.id);
  release_in_order(it->leases);
  open_.erase(it);
}

void ReleaseTickets::drop_all(Kind kind) {
  std::erase_if(open_, [kind](Open& open) {
    if (open.kind != kind) return false;
    release_in_order(open.leases);
    return true;
  });
}

int ReleaseTickets::num_open(Kind kind) const {
  return static_cast<int>(std::ranges::count(open_, kind, &Open::kind));
}

std::vector<ReleaseTickets::Open>::iterator ReleaseTickets::find(ReleaseTicket ticket) {
  return std::ranges::find(open_, ticket, &Open::ticket);
}

}  // namespace spate
