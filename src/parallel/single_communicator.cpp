#include "parallel/communicator.h"

namespace spate {
namespace {

class SingleCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  Status all_reduce_sum(Stream&, const Tensor&) override { return ok_status(); }
  Status all_gather(Stream&, const Tensor& shard, const Tensor& full) override { return in_place(shard, full); }
  Status reduce_scatter_sum(Stream&, const Tensor& full, const Tensor& shard) override { return in_place(full, shard); }
  Status gather_columns(Stream&, const Tensor& shard, const Tensor& full) override { return in_place(shard, full); }
  Status broadcast(Stream&, const Tensor&) override { return ok_status(); }
  Status dispatch(Stream&, const AllToAllParams& params) override { return in_place(params); }
  Status combine(Stream&, const AllToAllParams& params) override { return in_place(params); }
  Status send(Stream&, const Tensor&, int to_rank) override { return no_peer(to_rank); }
  Status receive(Stream&, const Tensor&, int from_rank) override { return no_peer(from_rank); }
  Status error() const override { return ok_status(); }
  void abort(const Status&) override {}  // there is nobody to tell

 private:
  Status in_place(const Tensor& in, const Tensor& out) const {
    CHECK(!out.defined() || out.raw() == in.raw(), "a group of one works in place");
    return ok_status();
  }
  Status in_place(const AllToAllParams& params) const {
    RETURN_IF_ERROR(in_place(params.send_counts, params.receive_counts));
    return in_place(params.x, params.out);
  }
  static Status no_peer(int rank) { return internal_error("a group of one has no rank {}", rank); }
};

}  // namespace

std::unique_ptr<Communicator> make_single_communicator() { return std::make_unique<SingleCommunicator>(); }

}  // namespace spate
