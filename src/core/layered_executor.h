// LayeredExecutor: a StepExecutor of several layers for multi-token prediction, one for each token ahead.
//
// A step is of one layer. Place p of layer i holds what it makes of layer i - 1's hidden state at p (layer 0: the model's)
// and token p + 1 + i. So a step of layer i runs the places, the rows and the order of the step of layer i - 1 before it,
// whose hidden states it reads; its rows know i tokens more.
#pragma once

#include "core/step_executor.h"

namespace spate {

class LayeredExecutor : public StepExecutor {
 public:
  virtual int num_layers() const = 0;
  // Of the next steps. While none is in flight.
  virtual void select_layer(int layer_idx) = 0;
};

}  // namespace spate
