// StepGraphs: steps as CUDA graphs. A step of a key that came before is captured, and from then on replayed in one
// launch.
//
// The first step of a key runs as it is, because ops may take memory that a capture must not take.
// Threads: the rank's thread.
#pragma once

#include <functional>
#include <map>

#include "backend/backend.h"
#include "backend/cuda/driver_api.h"

namespace spate::cuda {

class CudaDevice;
class CudaStream;

class StepGraphs {
 public:
  explicit StepGraphs(CudaDevice& device) : device_(device) {}
  ~StepGraphs() { clear(); }
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;

  void run(CudaStream& stream, const StepKey& key, const std::function<void()>& step);
  // What was captured names memory that is about to move. Waits for no work: the caller does.
  void clear();
  // For what a capture must not do, such as loading a kernel: the step of this capture runs as it is, and is captured
  // the next time.
  bool is_capturing() const { return is_capturing_; }
  void give_up_capture() { is_given_up_ = true; }

 private:
  static constexpr size_t kMaxGraphs = 512;  // at more all are dropped

  // Null: given up.
  CUgraphExec capture(CudaStream& stream, const std::function<void()>& step);

  CudaDevice& device_;
  std::map<StepKey, CUgraphExec> graphs_;  // null: seen once
  bool is_capturing_ = false, is_given_up_ = false;
};

// Sizes of decode steps that recur: num_seqs to the next of 1, 2, 4, 8, then steps of 8, 16 (from 128) and 64 (from
// 512); max_seq_len to a power of two. Other steps stay as they are.
StepKey padded_decode_step(const StepKey& exact, const StepKey& largest);

}  // namespace spate::cuda
