#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/client/client.h"
#include "worker/client/partition_schedule.h"
#include "worker/train/model_weights.h"
#include "worker/train/weight_transfer.h"

namespace torch::autograd {
struct Node;
}  // namespace torch::autograd

namespace cohort {

// Sends gradients during the backward pass: each partition as soon as autograd
// has finished with the last of its parameters, so that the exchange overlaps
// with the computation of the earlier layers.
//
// Partitions leave in the order that the server gave to all workers
// (PartitionSchedule), which is roughly the order in which they become final:
// last layers first. So all workers send the same partitions at about the same
// time, and the server need not hold much of a step. Letting the partitions
// that the next forward pass needs first overtake others would gain nothing: a
// step commits as a whole, and no layer may be computed before.
//
// On an accelerator a partition is first copied to the host. Whenever another
// partition becomes final, those that have arrived meanwhile are sent; SendRest
// waits for the others one by one, while the accelerator is still in its
// backward pass.
//
// Thread safety: one thread at a time, which may be one of autograd's while the
//   thread that drives the client waits for the backward pass.
class GradientSender {
 public:
  // Watches the parameters from now on. All arguments must outlive the sender.
  // The model must be ready: its partitions are known, and none of its tensors
  // is replaced later. `transfer` copies gradients from an accelerator; null if
  // they are computed on the CPU. `order` has every trainable partition once;
  // if empty, partitions leave as they become final.
  GradientSender(const ModelWeights& weights, Client& client,
                 WeightTransfer* transfer = nullptr,
                 std::vector<int32_t> order = {});
  // Later backward passes no longer reach it.
  ~GradientSender();
  GradientSender(const GradientSender&) = delete;
  GradientSender& operator=(const GradientSender&) = delete;

  // The next backward passes compute the gradient of an open push. Nothing is
  // sent yet: the gradients of several passes may add up.
  void Begin();
  // The next pass is the last one: partitions are sent as it finishes them.
  //
  // If the client refuses a gradient, StepInterrupted leaves the pass.
  void SendDuringNextPass();
  // Sends the partitions that no pass has finished: those that have a parameter
  // without a gradient.
  // Errors: those of Client::SendGradient.
  absl::Status SendRest();

 private:
  class Hook;

  // Autograd has finished with the gradient of one parameter.
  // Errors: those of Client::SendGradient; Internal if called twice for it.
  absl::Status OnFinal(size_t parameter);
  // Sends the partitions, or starts to fetch them.
  absl::Status SendAll(absl::Span<const int32_t> partitions);
  // Sends the partitions that have arrived; with `wait`, all that are being
  // fetched.
  absl::Status SendFetched(bool wait);

  // Fixed after construction.
  const ModelWeights& weights_;
  Client& client_;
  WeightTransfer* const transfer_;
  // One entry a parameter: the node where autograd accumulates its gradient.
  // Null if it needs none.
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators_;
  // Autograd's identifiers of our hooks there.
  std::vector<uintptr_t> hooks_;

  PartitionSchedule schedule_;
  // The pass in progress is the last of a push.
  bool sending_ = false;
};

}  // namespace cohort
