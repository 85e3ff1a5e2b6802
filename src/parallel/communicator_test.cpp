// Goal    Collectives give every rank the right, bit-identical results over many calls in a row (a missing barrier
// shows as
//         a wrong value in some round), for every dtype, with uneven and zero counts. A peer that never comes, leaves
//         or dies in the middle of its calls is an error on all ranks within the time limit, never a hang.
// Method  Threads as ranks. Sums of bf16 and f32 are compared bit by bit with the sum in rank order.
#include "parallel/communicator.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>

#include "base/rng.h"
#include "base/test.h"
#include "base/test_support.h"
#include "parallel/communicators.h"

namespace spate {
namespace {

using Clock = std::chrono::steady_clock;

// Groups of host memory never touch the stream's device.
struct NoDevice final : Device {
  std::string_view kind() const override { return "none"; }
  std::string description() const override { return "none"; }
  Result<MemoryInfo> memory_info() override { return MemoryInfo{}; }
  Result<Buffer> allocate(size_t, MemoryKind) override { return unimplemented("none"); }
  void deallocate(void*, size_t, MemoryKind) noexcept override {}
  std::unique_ptr<Stream> create_stream() override { return std::make_unique<Stream>(*this); }
  void copy_to_device(Stream&, void*, const void*, size_t) override {}
  void copy_to_host(Stream&, void*, const void*, size_t) override {}
  void fill_bytes(Stream&, void*, int, size_t) override {}
  void synchronize(Stream&) override {}
  const OpTable& ops() const override { std::abort(); }
  Result<PackedWeight> create_weight(const WeightDesc&) override { return unimplemented("none"); }
  Status pack_rows(PackedWeight&, RowPlace, const Tensor&) override { return unimplemented("none"); }
  int64_t kv_block_bytes(const KvLayerDesc&) const override { return 0; }
};

std::vector<std::unique_ptr<Communicator>> make_group(int size, double time_limit_s = 60) {
  return make_in_process_group({.name = "test group", .size = size, .time_limit_s = time_limit_s}).value();
}

// Runs `body` as every rank of a group, a thread each. A rank's communicator lives until all bodies have returned.
void run_ranks(std::vector<std::unique_ptr<Communicator>>& ranks,
               const std::function<void(Communicator&, Stream&)>& body) {
  std::vector<std::thread> threads;
  for (const auto& comm : ranks) {
    threads.emplace_back([&body, &comm] {
      NoDevice device;
      Stream stream(device);
      body(*comm, stream);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// What rank `rank` brings to round `round`: the same on every rank that computes it.
HostTensor values_of(DType dtype, std::initializer_list<int64_t> dims, int rank, int round) {
  HostTensor x(dtype, dims);
  Rng rng(static_cast<uint64_t>(round), static_cast<uint64_t>(rank) + 1);
  for (int64_t i = 0; i < x.view().num_elements(); ++i) {
    const float value = static_cast<float>(rng.below(2000000)) / 999.0f - 1000.0f;
    const size_t at = static_cast<size_t>(i);
    if (dtype == DType::kF32) x.span<float>()[at] = value;
    if (dtype == DType::kBf16) x.span<Bf16>()[at] = Bf16::from_float(value);
    if (dtype == DType::kI32) x.span<int32_t>()[at] = static_cast<int32_t>(rng.below(1u << 31));
  }
  return x;
}

// The sum over ranks in rank order, rounded once.
HostTensor sum_of(DType dtype, std::initializer_list<int64_t> dims, int size, int round) {
  HostTensor sum(dtype, dims);
  std::vector<HostTensor> parts;
  for (int r = 0; r < size; ++r) parts.push_back(values_of(dtype, dims, r, round));
  for (int64_t i = 0; i < sum.view().num_elements(); ++i) {
    const size_t at = static_cast<size_t>(i);
    float total = 0;
    uint32_t total_i32 = 0;
    for (HostTensor& part : parts) {
      if (dtype == DType::kF32) total += part.span<float>()[at];
      if (dtype == DType::kBf16) total += part.span<Bf16>()[at].to_float();
      if (dtype == DType::kI32) total_i32 += static_cast<uint32_t>(part.span<int32_t>()[at]);
    }
    if (dtype == DType::kF32) sum.span<float>()[at] = total;
    if (dtype == DType::kBf16) sum.span<Bf16>()[at] = Bf16::from_float(total);
    if (dtype == DType::kI32) sum.span<int32_t>()[at] = static_cast<int32_t>(total_i32);
  }
  return sum;
}

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.num_bytes() == b.num_bytes() &&
         (a.num_bytes() == 0 || std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.num_bytes())) == 0);
}

constexpr std::array kDTypes = {DType::kF32, DType::kBf16, DType::kI32};

void check_reductions(Communicator& comm, Stream& stream, DType dtype, int round, std::atomic<int>& num_wrong) {
  const int size = comm.size(), rank = comm.rank();
  HostTensor x = values_of(dtype, {3, 7}, rank, round);
  num_wrong += !comm.all_reduce_sum(stream, x).ok();
  num_wrong += !same_bytes(x, sum_of(dtype, {3, 7}, size, round));

  // Shards of two rows, in place in the full tensor in every second round.
  HostTensor full = values_of(dtype, {2 * size, 5}, rank, round);
  HostTensor shard(dtype, {2, 5});
  const Tensor own = full.view().rows(2 * rank, 2 * rank + 2);
  const Tensor out = round % 2 ? own : shard.view();
  num_wrong += !comm.reduce_scatter_sum(stream, full, out).ok();
  HostTensor sum = sum_of(dtype, {2 * size, 5}, size, round);
  num_wrong += !same_bytes(out, sum.view().rows(2 * rank, 2 * rank + 2));

  HostTensor gathered(dtype, {2 * size, 5});
  const Tensor target = round % 2 ? full.view() : gathered.view();
  num_wrong += !comm.all_gather(stream, out, target).ok();
  num_wrong += !same_bytes(target, sum);
}

void check_copies(Communicator& comm, Stream& stream, int round, std::atomic<int>& num_wrong) {
  const int size = comm.size(), rank = comm.rank();
  HostTensor full(DType::kI32, {2, 5 * size});
  HostTensor shard(DType::kI32, {2, 5});
  for (int i = 0; i < 10; ++i) shard.span<int32_t>()[static_cast<size_t>(i)] = round * 1000 + rank * 10 + i;
  num_wrong += !comm.gather_columns(stream, shard, rank == 0 ? full.view() : Tensor()).ok();
  for (int r = 0; rank == 0 && r < size; ++r) {
    for (int i = 0; i < 10; ++i) {
      num_wrong +=
          full.span<int32_t>()[static_cast<size_t>(i / 5 * 5 * size + r * 5 + i % 5)] != round * 1000 + r * 10 + i;
    }
  }
  HostTensor ids(DType::kI32, {4});
  if (rank == 0) ids.span<int32_t>()[3] = round;
  num_wrong += !comm.broadcast(stream, ids).ok();
  num_wrong += ids.span<int32_t>()[3] != round;

  // Around the ring: everyone sends before it receives.
  if (size == 1) return;
  HostTensor sent = values_of(DType::kBf16, {3, 2}, rank, round), got(DType::kBf16, {3, 2});
  const int next = (rank + 1) % size, before = (rank + size - 1) % size;
  num_wrong += !comm.send(stream, sent, next).ok();
  num_wrong += !comm.receive(stream, got, before).ok();
  num_wrong += !same_bytes(got, values_of(DType::kBf16, {3, 2}, before, round));
}

// How many rows `from` sends to `to`: uneven, often none; in some rounds a rank has none at all, or nobody has any.
int32_t rows_between(int from, int to, int round) {
  if (round % 7 == 3 || (round + from) % 5 == 0) return 0;
  return (from * 3 + to * 5 + round) % 4;
}

void check_all_to_all(Communicator& comm, Stream& stream, DType dtype, int round, std::atomic<int>& num_wrong) {
  const int size = comm.size(), rank = comm.rank();
  HostTensor send_counts(DType::kI32, {size}), receive_counts(DType::kI32, {size});
  int64_t num_sent = 0, num_received = 0;
  for (int r = 0; r < size; ++r) {
    send_counts.span<int32_t>()[static_cast<size_t>(r)] = rows_between(rank, r, round);
    num_sent += rows_between(rank, r, round);
    num_received += rows_between(r, rank, round);
  }
  const HostTensor x = values_of(dtype, {num_sent + 1, 3}, rank, round);  // one row that goes nowhere
  HostTensor out(dtype, {num_received + 2, 3});
  num_wrong +=
      !comm.dispatch(stream, {.x = x, .send_counts = send_counts, .out = out, .receive_counts = receive_counts}).ok();
  int64_t row = 0;
  for (int from = 0; from < size; ++from) {
    const int32_t count = rows_between(from, rank, round);
    num_wrong += receive_counts.span<int32_t>()[static_cast<size_t>(from)] != count;
    int64_t num_from = 0, first = 0;
    for (int to = 0; to < size; ++to) {
      if (to == rank) first = num_from;
      num_from += rows_between(from, to, round);
    }
    const HostTensor theirs = values_of(dtype, {num_from + 1, 3}, from, round);
    num_wrong += !same_bytes(out.view().rows(row, row + count), theirs.view().rows(first, first + count));
    row += count;
  }
  // And back, unchanged.
  HostTensor returned(dtype, {num_sent + 1, 3});
  num_wrong +=
      !comm.combine(stream, {.x = out, .send_counts = receive_counts, .out = returned, .receive_counts = send_counts})
           .ok();
  num_wrong += !same_bytes(returned.view().rows(0, num_sent), x.view().rows(0, num_sent));
}

Status all_reduce_once(Communicator& comm, Stream& stream) {
  HostTensor x(DType::kF32, {4});
  return comm.all_reduce_sum(stream, x);
}

}  // namespace

TEST_CASE("in-process group: every collective, in step, over many rounds") {
  for (const int size : {1, 2, 3, 4}) {
    CAPTURE(size);
    auto ranks = make_group(size);
    std::atomic<int> num_wrong{0};
    run_ranks(ranks, [&](Communicator& comm, Stream& stream) {
      for (int round = 0; round < 100; ++round) {
        const DType dtype = kDTypes[static_cast<size_t>(round) % kDTypes.size()];
        check_reductions(comm, stream, dtype, round, num_wrong);
        check_copies(comm, stream, round, num_wrong);
        check_all_to_all(comm, stream, dtype, round, num_wrong);
      }
    });
    CHECK(num_wrong == 0);
    for (const auto& comm : ranks) CHECK(comm->error().ok());
  }
}

TEST_CASE("in-process group: tensors without elements take part") {
  auto ranks = make_group(3);
  std::atomic<int> num_wrong{0};
  run_ranks(ranks, [&](Communicator& comm, Stream& stream) {
    HostTensor nothing(DType::kBf16, {0, 8}), counts(DType::kI32, {3}), received(DType::kI32, {3});
    for (int32_t& count : received.span<int32_t>()) count = 5;
    for (int round = 0; round < 20; ++round) {
      num_wrong += !comm.all_reduce_sum(stream, nothing).ok();
      num_wrong += !comm.all_gather(stream, nothing, nothing).ok();
      num_wrong += !comm.reduce_scatter_sum(stream, nothing, nothing).ok();
      num_wrong +=
          !comm.dispatch(stream, {.x = nothing, .send_counts = counts, .out = nothing, .receive_counts = received})
               .ok();
      for (const int32_t count : received.span<int32_t>()) num_wrong += count != 0;
    }
  });
  CHECK(num_wrong == 0);
}

TEST_CASE("in-process group: a peer that never comes is an error on all others within the time limit") {
  auto ranks = make_group(3, 0.2);
  std::array<Status, 3> statuses;
  const auto start = Clock::now();
  run_ranks(ranks, [&](Communicator& comm, Stream& stream) {
    if (comm.rank() == 1) return;
    statuses[static_cast<size_t>(comm.rank())] = all_reduce_once(comm, stream);
  });
  CHECK(std::chrono::duration<double>(Clock::now() - start).count() < 20);  // a busy machine; a hang would be for ever
  for (const int rank : {0, 2}) {
    const Status& status = statuses[static_cast<size_t>(rank)];
    CHECK(status.code() == StatusCode::kUnavailable);
    CHECK(status.message() == "test group of 3 ranks: rank 1 did not come to all_reduce_sum within 0.2 s");
  }
  // The one that comes too late learns it at once.
  NoDevice device;
  Stream stream(device);
  CHECK(all_reduce_once(*ranks[1], stream).message() == statuses[0].message());
  CHECK(ranks[1]->error().message() == statuses[0].message());
}

TEST_CASE("in-process group: a peer that dies in the middle ends the others' calls at once") {
  for (const int size : {2, 3, 4}) {
    CAPTURE(size);
    auto ranks = make_group(size, 600);
    std::vector<Status> statuses(static_cast<size_t>(size));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        NoDevice device;
        Stream stream(device);
        Communicator& comm = *ranks[static_cast<size_t>(rank)];
        for (int round = 0; statuses[static_cast<size_t>(rank)].ok(); ++round) {
          if (rank == size - 1 && round == 50) {
            ranks[static_cast<size_t>(rank)].reset();
            return;
          }
          statuses[static_cast<size_t>(rank)] = all_reduce_once(comm, stream);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (int rank = 0; rank + 1 < size; ++rank) {
      CHECK(statuses[static_cast<size_t>(rank)].message() ==
            fmt::format("test group of {} ranks: rank {} has left", size, size - 1));
    }
  }
}

// Ranks of unequal work are told to give up at some moment of their calls. A rank that has returned owns its tensor
// again.
TEST_CASE("in-process group: nobody touches the tensors of a rank that has returned with an error") {
  constexpr float kMine = 12345;
  for (int round = 0; round < 20; ++round) {
    auto ranks = make_group(3, 600);
    std::atomic<int> num_failed{0};
    std::vector<HostTensor> tensors;
    for (int rank = 0; rank < 3; ++rank) tensors.emplace_back(DType::kF32, std::initializer_list<int64_t>{1000000});
    std::thread killer([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(500 * round));
      ranks[0]->abort(internal_error("told to"));
    });
    run_ranks(ranks, [&](Communicator& comm, Stream& stream) {
      HostTensor& x = tensors[static_cast<size_t>(comm.rank())];
      while (comm.all_reduce_sum(stream, x).ok()) {
      }
      for (float& value : x.span<float>()) value = kMine;
      ++num_failed;
    });
    killer.join();
    CHECK(num_failed == 3);
    int num_changed = 0;
    for (HostTensor& x : tensors) {
      for (const float value : x.span<float>()) num_changed += value != kMine;
    }
    CHECK(num_changed == 0);
  }
}

TEST_CASE("in-process group: a message that nobody sends, or nobody receives, is an error") {
  NoDevice device;
  Stream stream(device);
  HostTensor x(DType::kI32, {2});
  auto ranks = make_group(2, 0.05);
  CHECK(ranks[0]->receive(stream, x, 1).message() ==
        "test group of 2 ranks: rank 1 did not answer a receive within 0.05 s");
  ranks = make_group(2, 0.05);
  CHECK(ranks[0]->send(stream, x, 1).ok());
  CHECK(ranks[0]->send(stream, x, 1).message() == "test group of 2 ranks: rank 1 did not answer a send within 0.05 s");
  // What was sent arrives, also after the group has ended.
  CHECK(ranks[1]->receive(stream, x, 0).ok());
  CHECK_FALSE(ranks[1]->receive(stream, x, 0).ok());
  ranks = make_group(2, 60);
  HostTensor other(DType::kI32, {3});
  CHECK(ranks[0]->send(stream, x, 1).ok());
  CHECK(ranks[1]->receive(stream, other, 0).message() == "test group: rank 0 sent i32 [2], rank 1 receives i32 [3]");
}

TEST_CASE("in-process group: ranks that call different things, and counts that do not fit, are errors on all ranks") {
  const auto run = [](const std::function<Status(Communicator&, Stream&)>& call) {
    auto ranks = make_group(2, 600);
    std::array<Status, 2> statuses;
    run_ranks(ranks, [&](Communicator& comm, Stream& stream) {
      statuses[static_cast<size_t>(comm.rank())] = call(comm, stream);
    });
    CHECK(statuses[0].message() == statuses[1].message());
    return statuses[0].message();
  };
  CHECK(run([](Communicator& comm, Stream& stream) {
          HostTensor x(DType::kF32, {4 + comm.rank()});
          return comm.rank() == 0 ? comm.broadcast(stream, x) : comm.all_reduce_sum(stream, x);
        }) == "test group: rank 0 calls broadcast with f32 [4], rank 1 calls all_reduce_sum with f32 [5]");
  const auto dispatch = [](Communicator& comm, Stream& stream, int32_t count, int64_t capacity) {
    HostTensor x(DType::kF32, {4, 2}), out(DType::kF32, {capacity, 2}), counts(DType::kI32, {2}),
        received(DType::kI32, {2});
    counts.span<int32_t>()[1] = count;
    return comm.dispatch(stream, {.x = x, .send_counts = counts, .out = out, .receive_counts = received});
  };
  CHECK(run([&](Communicator& comm, Stream& stream) { return dispatch(comm, stream, 3, 5); }) ==
        "test group: dispatch: rank 1 gets more than the 5 rows it has place for");
  CHECK(run([&](Communicator& comm, Stream& stream) { return dispatch(comm, stream, comm.rank() == 0 ? 1 : 5, 9); }) ==
        "test group: dispatch: rank 1 sends 5 rows of 4");
  CHECK(run([&](Communicator& comm, Stream& stream) { return dispatch(comm, stream, comm.rank() == 0 ? -1 : 1, 9); }) ==
        "test group: dispatch: rank 0 sends -1 rows to rank 1");
}

TEST_CASE("communicators: every axis has its group, and the end of one ends the others") {
  const ParallelSizes sizes{.tp = 2, .ep = 4, .dp = 2, .pp = 2};
  auto all = make_communicators(make_in_process_group, sizes, 600).value();
  REQUIRE(all.size() == 8);
  std::atomic<int> num_wrong{0};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 8; ++rank) {
    threads.emplace_back([&, rank] {
      NoDevice device;
      Stream stream(device);
      const Communicators& mine = all[static_cast<size_t>(rank)];
      const Place place = place_of(rank, sizes);
      for (const auto& [comm, at, axis] : {std::tuple{mine.tp.get(), place.tp, ParallelAxis::kTp},
                                           {mine.ep.get(), place.ep, ParallelAxis::kEp},
                                           {mine.dp.get(), place.dp, ParallelAxis::kDp},
                                           {mine.pp.get(), place.pp, ParallelAxis::kPp}}) {
        num_wrong += comm->rank() != at.rank || comm->size() != at.size;
        HostTensor x(DType::kI32, {1});
        x.span<int32_t>()[0] = rank;
        num_wrong += !comm->all_reduce_sum(stream, x).ok();
        for (const int member : group_of(rank, axis, sizes)) x.span<int32_t>()[0] -= member;
        num_wrong += x.span<int32_t>()[0] != 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(num_wrong == 0);
  CHECK(all[0].error().ok());
  all[0].tp->abort(internal_error("lost"));
  CHECK(all[1].error().message() == "lost");  // in its tp group; it ends its other groups
  CHECK(all[3].dp->error().message() == "lost");
  CHECK(all[6].error().ok());
}

TEST_CASE("a group of one works in place on any device") {
  NoDevice device;
  Stream stream(device);
  const Communicators single = make_single_communicators();
  HostTensor x(DType::kF32, {2, 2});
  CHECK(single.tp->all_reduce_sum(stream, x).ok());
  CHECK(single.ep->all_gather(stream, x, x).ok());
  CHECK(single.dp->gather_columns(stream, x, {}).ok());
  CHECK_FALSE(single.pp->send(stream, x, 1).ok());
  CHECK(single.error().ok());
}

}  // namespace spate
