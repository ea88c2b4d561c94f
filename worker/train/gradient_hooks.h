#pragma once

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "worker/session/worker_session.h"

namespace torch::autograd {
struct Node;
}  // namespace torch::autograd

namespace cohort {

// Lets gradients leave during the backward pass: the session is notified as
// soon as autograd has finished with a parameter, so that the exchange overlaps
// with the computation of the earlier layers.
//
// Partitions leave in the order that the server gave to all workers
// (PartitionSchedule), which is roughly the order in which they become final:
// last layers first. So all workers send the same partitions at about the same
// time, and the server need not hold much of a step. Letting the partitions
// that the next forward pass needs first overtake others would gain nothing: a
// step commits as a whole, and no layer may be computed before.
//
// Thread safety: one thread at a time, which may be one of autograd's while the
//   thread that drives the session waits for the backward pass.
class GradientHooks {
 public:
  // Watches the parameters, which are in the order of the layout, from now on.
  // None of the tensors may be replaced later. The session must outlive it.
  GradientHooks(const std::vector<at::Tensor>& parameters,
                WorkerSession& session);
  // Later backward passes no longer reach it.
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

  // Whether the next passes complete the gradients of the step, so that they
  // are sent. Those of earlier passes only add up. Initially false.
  //
  // If the session refuses a gradient, StepInterrupted leaves the pass.
  void set_sending(bool sending) { sending_ = sending; }

 private:
  class Hook;

  // Fixed after construction.
  WorkerSession& session_;
  // One entry a parameter: the node where autograd accumulates its gradient.
  // Null if it needs none.
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators_;
  // Autograd's identifiers of our hooks there.
  std::vector<uintptr_t> hooks_;

  bool sending_ = false;
};

}  // namespace cohort
