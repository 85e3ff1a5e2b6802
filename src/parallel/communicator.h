// Communicator: the collectives of one group of ranks. In-process for back-ends whose memory the host can read.
//
// Owned by its rank, called by the rank's thread only. Every rank of the group makes the same calls in the same order with
// the same shapes. Sums are taken in rank order in fp32 and rounded once, so that every rank holds the same bits.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "base/tensor.h"

namespace spate {

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // x = sum over ranks of x. Contiguous, kBf16 or kF32.
  virtual void all_reduce_sum(Stream& stream, const Tensor& x) = 0;
  // full[:, r * cols .. (r + 1) * cols) = shard of rank r, on rank 0; other ranks may pass an undefined `full`.
  // shard: [num_rows, cols], full: [num_rows, size * cols], any dtype; rows contiguous.
  virtual void gather_columns(Stream& stream, const Tensor& shard, const Tensor& full) = 0;
  // x of rank 0 goes to all. Contiguous, any dtype.
  virtual void broadcast(Stream& stream, const Tensor& x) = 0;
};

// A group of one: gather_columns copies nothing and needs full == shard in memory or undefined.
std::unique_ptr<Communicator> make_single_communicator();

// A group of `size` threads of this process over host-visible memory (cpu and reference back-ends).
// Entry r belongs to rank r's thread; the entries share their state and may be destroyed in any order.
std::vector<std::unique_ptr<Communicator>> make_in_process_group(int size);

}  // namespace spate
