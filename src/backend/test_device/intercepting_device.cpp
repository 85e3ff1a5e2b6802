#include "backend/test_device/intercepting_device.h"

#include <fmt/format.h>

#include "backend/test_device/launch_text.h"

namespace spate {
namespace {

class InterceptedStream final : public Stream {
 public:
  explicit InterceptedStream(InterceptingDevice& device)
      : Stream(device), device_(device), inner_(device.inner().create_stream()) {}
  InterceptingDevice& intercepting_device() { return device_; }
  Stream& inner() { return *inner_; }

 private:
  InterceptingDevice& device_;
  std::unique_ptr<Stream> inner_;
};

Stream& inner_of(Stream& stream) { return static_cast<InterceptedStream&>(stream).inner(); }

template <auto kMember, typename Params>
void intercept(Stream& stream, const Params& params) {
  InterceptingDevice& device = static_cast<InterceptedStream&>(stream).intercepting_device();
  const auto op = device.inner().ops().*kMember;
  device.on_launch(
      {.text = launch_text(params), .run = [op, params, &inner = inner_of(stream)] { op(inner, params); }});
}

// Sets the table's op if the inner device has it.
template <auto kMember, typename Params>
void wrap(const OpTable& inner, Op<Params> OpTable::*, OpTable& table) {
  if (inner.*kMember != nullptr) table.*kMember = intercept<kMember, Params>;
}

template <auto... kMembers>
OpTable wrap_all(const OpTable& inner) {
  OpTable table;
  (wrap<kMembers>(inner, kMembers, table), ...);
  return table;
}

OpTable intercepted(const OpTable& inner) {
  using T = OpTable;
  static_assert(sizeof(OpTable) == 28 * sizeof(void*), "an op is missing below");
  return wrap_all<&T::embedding, &T::linear, &T::rms_norm, &T::add, &T::silu_and_mul, &T::rope, &T::kv_write,
                  &T::attention_paged, &T::gather_rows, &T::scatter_rows, &T::apply_updates, &T::begin_step, &T::sample,
                  &T::logprobs, &T::finish_step, &T::kv_copy_blocks, &T::route_experts, &T::expert_mlp,
                  &T::latent_write, &T::attention_latent, &T::linear_heads, &T::attention_latent_expanded,
                  &T::add_rms_norm, &T::qk_norm_rope_kv_write, &T::qk_norm_rope_attention, &T::linear_silu_and_mul,
                  &T::expert_mlp_add_norm, &T::latent_norm_rope_write>(inner);
}

}  // namespace

InterceptingDevice::InterceptingDevice(std::unique_ptr<Device> inner)
    : inner_(std::move(inner)), ops_(intercepted(inner_->ops())) {}

std::unique_ptr<Stream> InterceptingDevice::create_stream() { return std::make_unique<InterceptedStream>(*this); }

void InterceptingDevice::copy_to_device(Stream& stream, void* dst, const void* src_host, size_t bytes) {
  on_launch({.text = fmt::format("copy_to_device({} from {}, {} bytes)", dst, src_host, bytes),
             .run = [=, this, &inner = inner_of(stream)] { inner_->copy_to_device(inner, dst, src_host, bytes); }});
}

void InterceptingDevice::copy_to_host(Stream& stream, void* dst_host, const void* src, size_t bytes) {
  on_launch({.text = fmt::format("copy_to_host({} from {}, {} bytes)", dst_host, src, bytes),
             .run = [=, this, &inner = inner_of(stream)] { inner_->copy_to_host(inner, dst_host, src, bytes); }});
}

void InterceptingDevice::fill_bytes(Stream& stream, void* dst, int byte, size_t bytes) {
  on_launch({.text = fmt::format("fill_bytes({} with {}, {} bytes)", dst, byte, bytes),
             .run = [=, this, &inner = inner_of(stream)] { inner_->fill_bytes(inner, dst, byte, bytes); }});
}

void InterceptingDevice::synchronize(Stream& stream) { inner_->synchronize(inner_of(stream)); }

}  // namespace spate
