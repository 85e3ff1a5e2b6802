#include "text/jinja/meter.h"

namespace spate::jinja {

thread_local Meter* current_meter = nullptr;

void charge_steps(int64_t num_steps) {
  if (current_meter == nullptr) return;
  current_meter->num_steps += num_steps;
  if (current_meter->num_steps > current_meter->limits.max_steps) {
    throw LimitError(fmt::format("the template ran for more than {} steps", current_meter->limits.max_steps));
  }
}

void charge_live_bytes(size_t num_bytes) {
  if (current_meter == nullptr) return;
  current_meter->live_bytes += num_bytes;
  if (current_meter->live_bytes > current_meter->limits.max_live_bytes) {
    throw LimitError(
        fmt::format("the template's values need more than {} MiB", current_meter->limits.max_live_bytes >> 20));
  }
}

void release_live_bytes(size_t num_bytes) {
  if (current_meter == nullptr) return;
  current_meter->live_bytes -= num_bytes < current_meter->live_bytes ? num_bytes : current_meter->live_bytes;
}

void check_stack() {
  if (current_meter == nullptr) return;
  const uintptr_t here = Meter::current_frame();
  const uintptr_t used = current_meter->stack_base > here ? current_meter->stack_base - here : 0;
  if (used > current_meter->limits.max_stack_bytes) throw LimitError("the template is nested too deeply");
}

size_t max_string_bytes() {
  return current_meter == nullptr ? Limits().max_output_bytes : current_meter->limits.max_output_bytes;
}

void check_string_bytes(size_t num_bytes) {
  if (num_bytes > max_string_bytes()) {
    throw LimitError(fmt::format("the template made a text of {} bytes; at most {} MiB are allowed", num_bytes,
                                 max_string_bytes() >> 20));
  }
}

}  // namespace spate::jinja
