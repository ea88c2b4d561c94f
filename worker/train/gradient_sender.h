#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "worker/client/client.h"
#include "worker/train/model_weights.h"
#include "worker/train/weight_transfer.h"

namespace torch::autograd {
struct Node;
}  // namespace torch::autograd

namespace cohort {

// Sends gradients while the backward pass goes on: each partition as soon as
// autograd has finished with the last of its parameters, so that the exchange
// hides behind the computing of the layers before.
//
// Partitions leave in the order that the server gave all workers, about that in
// which they become final: those of the last layers first. One that becomes
// final before its turn waits here. So what one worker sends is what others
// have sent, and the server need not hold much of a step. To let the ones that
// the next forward pass needs first overtake others would gain nothing: a step
// commits as a whole, and no layer may be computed before.
//
// From an accelerator a partition is fetched first. Whenever another one
// becomes final, those are sent that have arrived meanwhile; SendRest waits for
// the others one by one, while the accelerator is still in its backward pass.
//
// Thread safety: one thread at a time, which may be one of autograd's while
//   the thread that drives the client waits for the backward pass.
class GradientSender {
 public:
  // Watches the parameters from now on. All must outlive the sender, and the
  // model be ready: partitions known, none of its tensors replaced later.
  // `transfer` brings the gradients from where they are computed; null: from
  // the CPU, where they lie already. `order` has every trainable partition
  // once; empty: they leave as they become final.
  GradientSender(const ModelWeights& weights, Client& client,
                 WeightTransfer* transfer = nullptr,
                 std::vector<int32_t> order = {});
  // Backward passes no longer reach it.
  ~GradientSender();
  GradientSender(const GradientSender&) = delete;
  GradientSender& operator=(const GradientSender&) = delete;

  // What the next backward passes find is the gradient of an open push.
  // Nothing is sent yet: the gradients of several passes may add up.
  void Begin();
  // The next pass is the last one: what it finishes with is sent.
  //
  // While it runs, StepInterrupted leaves it if the client refuses a
  // gradient.
  void SendDuringNextPass();
  // Sends what no pass has finished with: parameters without a gradient.
  // Errors: those of Client::SendGradient.
  absl::Status SendRest();

 private:
  class Hook;

  // Autograd has finished with the gradient of one parameter.
  // Errors: those of Client::SendGradient; Internal if it comes a second time.
  absl::Status OnFinal(size_t parameter);
  // `partition` is final: sends what has its turn now.
  absl::Status Dispatch(size_t partition);
  // Sends it, or begins to fetch it.
  absl::Status SendOne(size_t partition);
  // Those that have arrived; with `wait`, all that are under way.
  absl::Status SendFetched(bool wait);

  // Fixed after construction.
  const ModelWeights& weights_;
  Client& client_;
  WeightTransfer* const transfer_;
  // Of each parameter: where autograd accumulates it, and the partitions that
  // hold it. Null and empty for one that needs no gradient.
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators_;
  // Autograd's names of our hooks there.
  std::vector<uintptr_t> hooks_;
  std::vector<std::vector<size_t>> partitions_of_;
  const std::vector<int32_t> order_;
  // By partition: no pass finished with it once, as a parameter of it is not
  // used. Others do not wait for its turn any more.
  std::vector<bool> comes_late_;

  // Of the push in progress.
  bool sending_ = false;
  std::vector<bool> final_;
  // Of each partition: parameters that are not final yet.
  std::vector<int32_t> missing_;
  // Final, sent or waiting for its turn.
  std::vector<bool> ready_;
  std::vector<bool> sent_;
};

}  // namespace cohort
