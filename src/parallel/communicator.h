// Communicator: what the ranks of one group exchange: collectives, rows of experts, messages from one rank to another.
//
// Owned by its rank, called by that rank's thread only. Every rank of a group makes the same collective calls in the
// same order, with the same shapes and dtypes; a step without tokens makes them too, with no rows. Sums are taken in
// rank order in fp32 (i32 for integers) and rounded once, so every rank holds bit-identical results.
//
// Errors. A peer that is missing or dead becomes an error within GroupOptions::time_limit_s, never a hang. The first
// error of a group is final: it ends the calls in progress on all ranks, and every later call returns it at once.
// Results are then unspecified. Each call returns what is known when it returns; error() after the stream has been
// synchronized is the whole truth. So a caller that only enqueues work may ignore a call's Status if it asks error()
// before it uses the result.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/status.h"
#include "base/tensor.h"

namespace spate {

// Rows that go to ranks by counts. A row is contiguous; x and out have the same width and dtype.
struct AllToAllParams {
  Tensor x;               // [num_rows, width]: rows for rank 0, then for rank 1 ...; num_rows may exceed their sum
  Tensor send_counts;     // [size], kI32: rows for each rank
  Tensor out;             // [max_rows, width]: rows of rank 0, then of rank 1 ...; unspecified behind them
  Tensor receive_counts;  // [size], kI32: rows from each rank
};

class Communicator {
 public:
  virtual ~Communicator() = default;  // leaves the group: peers that still need this rank get an error
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // x = sum over ranks of x. Contiguous; kF32, kBf16 or kI32.
  virtual Status all_reduce_sum(Stream& stream, const Tensor& x) = 0;
  // full[r * n .. (r + 1) * n) = shard of rank r, in rows. Contiguous, any dtype. shard may be that part of its own
  // full.
  virtual Status all_gather(Stream& stream, const Tensor& shard, const Tensor& full) = 0;
  // shard = rows [rank * n .. (rank + 1) * n) of the sum over ranks of full. As all_reduce_sum; shard may be that part
  // of full.
  virtual Status reduce_scatter_sum(Stream& stream, const Tensor& full, const Tensor& shard) = 0;
  // full[:, r * cols .. (r + 1) * cols) = shard of rank r, on rank 0; other ranks may pass an undefined `full`.
  // shard: [num_rows, cols], full: [num_rows, size * cols], any dtype; rows contiguous.
  virtual Status gather_columns(Stream& stream, const Tensor& shard, const Tensor& full) = 0;
  // x of rank 0 goes to all. Contiguous, any dtype.
  virtual Status broadcast(Stream& stream, const Tensor& x) = 0;

  // Tokens to the ranks that hold their experts. Writes receive_counts. More rows than `out` holds are an error.
  virtual Status dispatch(Stream& stream, const AllToAllParams& params) = 0;
  // The way back: x lies as dispatch's out did, out gets the order of dispatch's x. send_counts are what dispatch
  // received, receive_counts what it sent; both are read.
  virtual Status combine(Stream& stream, const AllToAllParams& params) = 0;

  // x of one rank becomes x of another: contiguous, same shape and dtype. At most one message is on its way from one
  // rank to another; send waits until the one before was received.
  virtual Status send(Stream& stream, const Tensor& x, int to_rank) = 0;
  virtual Status receive(Stream& stream, const Tensor& x, int from_rank) = 0;

  // The first error of the group, by whichever rank; ok: none yet. Any thread.
  virtual Status error() const = 0;
  // Ends the group with `reason`: all ranks' calls return it, those that wait now included. Any thread.
  virtual void abort(const Status& reason) = 0;
};

struct GroupOptions {
  std::string name = "group";  // in errors: "tp group"
  int size = 1;
  double time_limit_s = 60;          // how long a rank waits for another
  std::span<Device* const> devices;  // of the ranks, in their order; empty for groups of host memory
};

// Entry r belongs to rank r's thread; entries may be destroyed in any order.
using GroupFactory = Result<std::vector<std::unique_ptr<Communicator>>> (*)(const GroupOptions& options);

// A group of threads of this process over host-visible memory.
Result<std::vector<std::unique_ptr<Communicator>>> make_in_process_group(const GroupOptions& options);

// A group of one on any device. It works in place: outputs must be the inputs, or undefined.
std::unique_ptr<Communicator> make_single_communicator();

}  // namespace spate
