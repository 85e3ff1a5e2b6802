// Goal    Collectives give every rank the same bits, and the right ones, over many calls in a row (a missing barrier shows
//         as a wrong sum at some round).
// Method  Threads as ranks; integers in floats, so that sums are exact in any order.
#include "parallel/communicator.h"

#include <thread>

#include "base/test_support.h"
#include "base/test.h"

namespace spate {
namespace {

// The collectives never touch the stream's device in a host-memory group.
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
  Status pack_rows(PackedWeight&, int64_t, const Tensor&) override { return unimplemented("none"); }
  int64_t kv_block_bytes(const KvGroupDesc&) const override { return 0; }
};

}  // namespace

TEST_CASE("in-process group: sums, gathers and broadcasts in step") {
  for (const int size : {1, 2, 3, 4}) {
    CAPTURE(size);
    auto ranks = make_in_process_group(size);
    std::vector<int> num_wrong(static_cast<size_t>(size));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        NoDevice device;
        Stream stream(device);
        Communicator& comm = *ranks[static_cast<size_t>(rank)];
        int& wrong = num_wrong[static_cast<size_t>(rank)];
        for (int round = 0; round < 200; ++round) {
          HostTensor x(round % 2 ? DType::kF32 : DType::kBf16, {3, 7});
          for (int i = 0; i < 21; ++i) {
            const float value = static_cast<float>(i + rank + round % 5);
            if (round % 2) x.span<float>()[static_cast<size_t>(i)] = value;
            else x.span<Bf16>()[static_cast<size_t>(i)] = Bf16::from_float(value);
          }
          comm.all_reduce_sum(stream, x);
          for (int i = 0; i < 21; ++i) {
            const float sum = static_cast<float>(size * (i + round % 5) + size * (size - 1) / 2);
            const float got = round % 2 ? x.span<float>()[static_cast<size_t>(i)]
                                        : x.span<Bf16>()[static_cast<size_t>(i)].to_float();
            wrong += got != sum;
          }

          HostTensor full(DType::kI32, {2, 5 * size});
          HostTensor shard(DType::kI32, {2, 5});
          for (int i = 0; i < 10; ++i) shard.span<int32_t>()[static_cast<size_t>(i)] = round * 1000 + rank * 10 + i;
          comm.gather_columns(stream, shard, size == 1 ? shard.view() : rank == 0 ? full.view() : Tensor());
          for (int r = 0; rank == 0 && size > 1 && r < size; ++r) {
            for (int i = 0; i < 10; ++i) {
              wrong += full.span<int32_t>()[static_cast<size_t>(i / 5 * 5 * size + r * 5 + i % 5)] != round * 1000 + r * 10 + i;
            }
          }

          HostTensor ids(DType::kI32, {4});
          if (rank == 0) ids.span<int32_t>()[3] = round;
          comm.broadcast(stream, ids);
          wrong += ids.span<int32_t>()[3] != round;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const int wrong : num_wrong) CHECK(wrong == 0);
  }
}

}  // namespace spate
