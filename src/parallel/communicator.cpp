#include "parallel/communicator.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

namespace spate {
namespace {

class SingleCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void all_reduce_sum(Stream&, const Tensor&) override {}
  void gather_columns(Stream&, const Tensor& shard, const Tensor& full) override {
    CHECK(!full.defined() || full.raw() == shard.raw(), "a group of one gathers in place");
  }
  void broadcast(Stream&, const Tensor&) override {}
};

// Spins for a few microseconds (the usual wait, ranks run in step), then sleeps in the kernel: with fewer cores than ranks a
// spinning rank would take the core that the others need.
class Barrier {
 public:
  explicit Barrier(int size) : size_(size) {}

  void wait() {
    const uint32_t phase = phase_.load(std::memory_order_acquire);
    if (num_arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
      num_arrived_.store(0, std::memory_order_relaxed);
      phase_.fetch_add(1, std::memory_order_release);
      phase_.notify_all();
      return;
    }
    for (int spin = 0; spin < 2000; ++spin) {
      if (phase_.load(std::memory_order_acquire) != phase) return;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    while (phase_.load(std::memory_order_acquire) == phase) phase_.wait(phase, std::memory_order_acquire);
  }

 private:
  const int size_;
  std::atomic<int> num_arrived_{0};
  std::atomic<uint32_t> phase_{0};
};

struct Group {
  explicit Group(int size_in) : size(size_in), barrier(size_in), tensors(static_cast<size_t>(size_in)) {}
  const int size;
  Barrier barrier;
  std::vector<Tensor> tensors;  // what each rank brought to the call in progress
};

template <typename T>
void sum_slice(const Group& group, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    float sum = 0;
    for (const Tensor& x : group.tensors) {
      if constexpr (std::is_same_v<T, float>) {
        sum += x.data<float>()[i];
      } else {
        sum += x.data<T>()[i].to_float();
      }
    }
    for (const Tensor& x : group.tensors) {
      if constexpr (std::is_same_v<T, float>) {
        x.data<float>()[i] = sum;
      } else {
        x.data<T>()[i] = T::from_float(sum);
      }
    }
  }
}

class InProcessCommunicator final : public Communicator {
 public:
  InProcessCommunicator(std::shared_ptr<Group> group, int rank) : group_(std::move(group)), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return group_->size; }

  // Rank r sums slice r of all tensors and writes it to all: one pass, each element touched by one thread.
  void all_reduce_sum(Stream&, const Tensor& x) override {
    CHECK(x.is_contiguous(), "all_reduce_sum of a strided tensor {}", x.shape_string());
    meet(x);
    const int64_t n = x.num_elements();
    const int64_t begin = n * rank_ / size(), end = n * (rank_ + 1) / size();
    if (x.dtype() == DType::kF32) {
      sum_slice<float>(*group_, begin, end);
    } else {
      CHECK(x.dtype() == DType::kBf16, "all_reduce_sum of {}", dtype_name(x.dtype()));
      sum_slice<Bf16>(*group_, begin, end);
    }
    group_->barrier.wait();
  }

  void gather_columns(Stream&, const Tensor& shard, const Tensor& full) override {
    meet(shard);
    if (rank_ == 0) {
      const int64_t row_bytes = shard.dim(1) * dtype_bytes(shard.dtype());
      CHECK(full.dim(0) == shard.dim(0) && full.dim(1) == shard.dim(1) * size(), "gather of {} x {} into {}",
            shard.shape_string(), size(), full.shape_string());
      for (int r = 0; r < size(); ++r) {
        const Tensor& part = group_->tensors[static_cast<size_t>(r)];
        for (int64_t i = 0; i < shard.dim(0); ++i) {
          std::memcpy(full.rows(i, i + 1).columns(r * shard.dim(1), (r + 1) * shard.dim(1)).raw(),
                      part.rows(i, i + 1).raw(), static_cast<size_t>(row_bytes));
        }
      }
    }
    group_->barrier.wait();
  }

  void broadcast(Stream&, const Tensor& x) override {
    meet(x);
    if (rank_ != 0) std::memcpy(x.raw(), group_->tensors[0].raw(), static_cast<size_t>(x.num_bytes()));
    group_->barrier.wait();
  }

 private:
  // Shows this rank's tensor to the others and waits for theirs.
  void meet(const Tensor& x) {
    group_->tensors[static_cast<size_t>(rank_)] = x;
    group_->barrier.wait();
  }

  std::shared_ptr<Group> group_;
  int rank_;
};

}  // namespace

std::unique_ptr<Communicator> make_single_communicator() { return std::make_unique<SingleCommunicator>(); }

std::vector<std::unique_ptr<Communicator>> make_in_process_group(int size) {
  CHECK(size >= 1, "a group of {} ranks", size);
  std::vector<std::unique_ptr<Communicator>> ranks;
  if (size == 1) {
    ranks.push_back(make_single_communicator());
    return ranks;
  }
  const auto group = std::make_shared<Group>(size);
  for (int rank = 0; rank < size; ++rank) ranks.push_back(std::make_unique<InProcessCommunicator>(group, rank));
  return ranks;
}

}  // namespace spate
