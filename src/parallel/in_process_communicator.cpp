#include <cstring>

#include "parallel/communicator.h"
#include "parallel/host_group.h"

namespace spate {
namespace {

using Offer = HostGroup::Offer;

// Elements [begin, end) of the sum over all ranks' `in`, in rank order: put(i, sum).
template <typename T, typename Put>
void sum_elements(const std::vector<Offer>& offers, int64_t begin, int64_t end, const Put& put) {
  using Sum = std::conditional_t<std::is_same_v<T, int32_t>, int32_t, float>;
  for (int64_t i = begin; i < end; ++i) {
    Sum sum = 0;
    for (const Offer& offer : offers) {
      if constexpr (std::is_same_v<T, Bf16>) {
        sum += offer.in.data<T>()[i].to_float();
      } else if constexpr (std::is_same_v<T, int32_t>) {
        sum = static_cast<int32_t>(static_cast<uint32_t>(sum) + static_cast<uint32_t>(offer.in.data<T>()[i]));
      } else {
        sum += offer.in.data<T>()[i];
      }
    }
    if constexpr (std::is_same_v<T, Bf16>) {
      put(i, Bf16::from_float(sum));
    } else {
      put(i, sum);
    }
  }
}

template <typename Function>
void with_sum_type(DType dtype, const Function& function) {
  if (dtype == DType::kF32) return function(float());
  if (dtype == DType::kBf16) return function(Bf16());
  CHECK(dtype == DType::kI32, "a sum of {}", dtype_name(dtype));
  function(int32_t());
}

bool is_same_shape(const Tensor& a, const Tensor& b) {
  if (a.rank() != b.rank() || a.dtype() != b.dtype()) return false;
  for (int i = 0; i < a.rank(); ++i) {
    if (a.dim(i) != b.dim(i)) return false;
  }
  return true;
}

int64_t sum_of(const Tensor& counts, int end) {
  int64_t sum = 0;
  for (int r = 0; r < end; ++r) sum += counts.data<int32_t>()[r];
  return sum;
}

class InProcessCommunicator final : public Communicator {
 public:
  InProcessCommunicator(std::shared_ptr<HostGroup> group, int rank, std::string name)
      : group_(std::move(group)), rank_(rank), name_(std::move(name)) {}
  ~InProcessCommunicator() override {
    group_->fail(unavailable("{} of {} ranks: rank {} has left", name_, size(), rank_));
  }

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }
  Status error() const override { return group_->error(); }
  void abort(const Status& reason) override { group_->fail(reason); }

  // Rank r sums slice r of all tensors and writes it to all: one pass, each element touched by one thread.
  Status all_reduce_sum(Stream&, const Tensor& x) override {
    CHECK(x.is_contiguous(), "all_reduce_sum of a strided tensor {}", x.shape_string());
    return collective({.op = "all_reduce_sum", .in = x}, [&] {
      const int64_t n = x.num_elements();
      with_sum_type(x.dtype(), [&]<typename T>(T) {
        sum_elements<T>(offers(), n * rank_ / size(), n * (rank_ + 1) / size(), [&](int64_t i, T sum) {
          for (const Offer& offer : offers()) offer.in.data<T>()[i] = sum;
        });
      });
      return ok_status();
    });
  }

  Status all_gather(Stream&, const Tensor& shard, const Tensor& full) override {
    CHECK(shard.is_contiguous() && full.is_contiguous(), "all_gather of strided tensors");
    CHECK(full.dtype() == shard.dtype() && full.num_elements() == shard.num_elements() * size(),
          "all_gather of {} x {} into {}", shard.shape_string(), size(), full.shape_string());
    return collective({.op = "all_gather", .in = shard}, [&] {
      const int64_t bytes = shard.num_bytes();
      for (int r = 0; r < size(); ++r)
        copy(static_cast<char*>(full.raw()) + r * bytes, offers()[static_cast<size_t>(r)].in.raw(), bytes);
      return ok_status();
    });
  }

  Status reduce_scatter_sum(Stream&, const Tensor& full, const Tensor& shard) override {
    CHECK(shard.is_contiguous() && full.is_contiguous(), "reduce_scatter_sum of strided tensors");
    CHECK(full.dtype() == shard.dtype() && full.num_elements() == shard.num_elements() * size(),
          "reduce_scatter_sum of {} into {} x {}", full.shape_string(), size(), shard.shape_string());
    return collective({.op = "reduce_scatter_sum", .in = full}, [&] {
      const int64_t n = shard.num_elements(), begin = rank_ * n;
      with_sum_type(full.dtype(), [&]<typename T>(T) {
        sum_elements<T>(offers(), begin, begin + n, [&](int64_t i, T sum) { shard.data<T>()[i - begin] = sum; });
      });
      return ok_status();
    });
  }

  Status gather_columns(Stream&, const Tensor& shard, const Tensor& full) override {
    const int64_t columns = shard.dim(1);
    if (rank_ == 0) {
      CHECK(full.dim(0) == shard.dim(0) && full.dim(1) == columns * size(), "gather of {} x {} into {}",
            shard.shape_string(), size(), full.shape_string());
    }
    return collective({.op = "gather_columns", .in = shard}, [&] {
      for (int r = 0; rank_ == 0 && r < size(); ++r) {
        const Tensor& part = offers()[static_cast<size_t>(r)].in;
        for (int64_t i = 0; i < shard.dim(0); ++i) {
          copy(full.rows(i, i + 1).columns(r * columns, (r + 1) * columns).raw(), part.rows(i, i + 1).raw(),
               columns * dtype_bytes(shard.dtype()));
        }
      }
      return ok_status();
    });
  }

  Status broadcast(Stream&, const Tensor& x) override {
    CHECK(x.is_contiguous(), "broadcast of a strided tensor {}", x.shape_string());
    return collective({.op = "broadcast", .in = x}, [&] {
      copy(x.raw(), offers()[0].in.raw(), x.num_bytes());
      return ok_status();
    });
  }

  Status dispatch(Stream&, const AllToAllParams& params) override { return all_to_all("dispatch", params, true); }
  Status combine(Stream&, const AllToAllParams& params) override { return all_to_all("combine", params, false); }

  Status send(Stream&, const Tensor& x, int to_rank) override { return group_->send(rank_, to_rank, x); }
  Status receive(Stream&, const Tensor& x, int from_rank) override { return group_->receive(from_rank, rank_, x); }

 private:
  const std::vector<Offer>& offers() const { return group_->offers; }

  static void copy(void* dst, const void* src, int64_t bytes) {
    if (dst != src && bytes > 0) std::memcpy(dst, src, static_cast<size_t>(bytes));
  }

  // Shows `offer` to the others, works on all offers, and waits until all have worked.
  template <typename Work>
  Status collective(const Offer& offer, const Work& work) {
    if (group_->has_failed()) return group_->leave();
    group_->offers[static_cast<size_t>(rank_)] = offer;
    RETURN_IF_ERROR(group_->meet(rank_, offer.op));
    if (!group_->begin_access()) return group_->leave();
    Status status = check_offers();
    if (status.ok()) status = work();
    group_->end_access();
    if (!status.ok()) {
      group_->fail(status);
      return group_->leave();
    }
    return group_->meet(rank_, offer.op);
  }

  // All ranks find the same difference.
  Status check_offers() const {
    const Offer& first = offers()[0];
    for (size_t r = 1; r < offers().size(); ++r) {
      const Offer& offer = offers()[r];
      const bool has_counts = first.send_counts.defined();
      const bool fits = has_counts ? offer.in.dtype() == first.in.dtype() && offer.in.dim(1) == first.in.dim(1)
                                   : is_same_shape(offer.in, first.in);
      if (std::string_view(offer.op) == first.op && fits) continue;
      return internal_error("{}: rank 0 calls {} with {} {}, rank {} calls {} with {} {}", name_, first.op,
                            dtype_name(first.in.dtype()), first.in.shape_string(), r, offer.op,
                            dtype_name(offer.in.dtype()), offer.in.shape_string());
    }
    return ok_status();
  }

  Status all_to_all(const char* op, const AllToAllParams& p, bool writes_counts) {
    CHECK(p.x.dim(1) == p.out.dim(1) && p.x.dtype() == p.out.dtype(), "{} of {} into {}", op, p.x.shape_string(),
          p.out.shape_string());
    for (const Tensor& counts : {p.send_counts, p.receive_counts}) {
      CHECK(counts.dtype() == DType::kI32 && counts.num_elements() == size(), "{}: counts {}", op,
            counts.shape_string());
    }
    const Offer offer{
        .op = op, .in = p.x, .out = p.out, .send_counts = p.send_counts, .receive_counts = p.receive_counts};
    return collective(offer, [&]() -> Status {
      RETURN_IF_ERROR(check_counts(op));
      const int64_t row_bytes = p.x.dim(1) * dtype_bytes(p.x.dtype());
      int32_t* receive_counts = p.receive_counts.data<int32_t>();
      int64_t out_row = 0;
      for (int r = 0; r < size(); ++r) {
        const Offer& from = offers()[static_cast<size_t>(r)];
        const int32_t count = from.send_counts.data<int32_t>()[rank_];
        if (writes_counts) receive_counts[r] = count;
        if (receive_counts[r] != count) {
          return internal_error("{}: {}: rank {} sends {} rows to rank {}, which awaits {}", name_, op, r, count, rank_,
                                receive_counts[r]);
        }
        if (out_row + count > p.out.dim(0)) {
          return resource_exhausted("{}: {}: rank {} gets more than the {} rows it has place for", name_, op, rank_,
                                    p.out.dim(0));
        }
        const int64_t first_row = sum_of(from.send_counts, rank_);
        for (int64_t i = 0; i < count; ++i, ++out_row) {
          copy(p.out.rows(out_row, out_row + 1).raw(), from.in.rows(first_row + i, first_row + i + 1).raw(), row_bytes);
        }
      }
      return ok_status();
    });
  }

  // Of all ranks, by every rank: nobody reads rows that are not there.
  Status check_counts(const char* op) const {
    for (size_t r = 0; r < offers().size(); ++r) {
      const Offer& offer = offers()[r];
      for (int to = 0; to < size(); ++to) {
        const int32_t count = offer.send_counts.data<int32_t>()[to];
        if (count < 0) return internal_error("{}: {}: rank {} sends {} rows to rank {}", name_, op, r, count, to);
      }
      if (const int64_t total = sum_of(offer.send_counts, size()); total > offer.in.dim(0)) {
        return internal_error("{}: {}: rank {} sends {} rows of {}", name_, op, r, total, offer.in.dim(0));
      }
    }
    return ok_status();
  }

  const std::shared_ptr<HostGroup> group_;
  const int rank_;
  const std::string name_;
};

}  // namespace

Result<std::vector<std::unique_ptr<Communicator>>> make_in_process_group(const GroupOptions& options) {
  CHECK(options.size >= 1, "a group of {} ranks", options.size);
  std::vector<std::unique_ptr<Communicator>> ranks;
  const auto group = std::make_shared<HostGroup>(options);
  for (int rank = 0; rank < options.size; ++rank) {
    ranks.push_back(std::make_unique<InProcessCommunicator>(group, rank, options.name));
  }
  return ranks;
}

}  // namespace spate
