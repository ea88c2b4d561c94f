// How a simulated worker pushes its results.

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/bfloat16.h"
#include "server/core/model/shard_place.h"
#include "tests/sim/sim_data_shard.h"
#include "tests/sim/sim_worker.h"

namespace cohort::sim {
namespace {

ByteRope CutSomewhere(const std::shared_ptr<const GradientBlock>& block,
                      SplitMix64& random) {
  absl::Span<const std::byte> bytes = absl::MakeConstSpan(
      reinterpret_cast<const std::byte*>(block->values.data()),
      block->values.size() * sizeof(float));
  if (!block->halves.empty()) bytes = block->halves;
  const auto cut = static_cast<size_t>(random.Below(bytes.size()));
  ByteRope rope;
  rope.Append(bytes.subspan(0, cut), block);
  rope.Append(bytes.subspan(cut), block);
  return rope;
}

}  // namespace

void SimWorker::OpenPush() {
  world_.network.ToServer(
      connection_, StreamKind::kExchange,
      [connection = connection_, sender = Identity(), key = step_->key,
       opening = step_->opening](SimServer& server) {
        server.Open(connection, sender, key, opening);
      });
}

void SimWorker::Backward() {
  Step& step = *step_;
  while (step.backward_left > 0) {
    const size_t call = step.backward_left - 1;
    if (!step.backward[call].has_value()) {
      const Moments local =
          BackwardMoments(step.input, step.calls[call], step.forward[call]);
      if (MeetsOthers()) {
        if (HasOwnPass(step.input, step.calls[call]) &&
            !step.passes[call].has_value()) {
          // [1]: its first.
          return Contribute(ReducePhase::kBackward, {1}, PassMoments(local));
        }
        return Contribute(ReducePhase::kBackward, {}, local);
      }
      step.backward[call] = local;
    }
    --step.backward_left;
    SendGradients(false);
  }
  SendGradients(true);
  if (!step.opening.continues) return ClosePush();
  step.phase = Phase::kAwaitingUpdate;
  if (world_.random.Uniform() < world_.scenario.duplicates) RepeatGradients();
  if (step.aborted || step.verdict.has_value()) {
    Abandon();
    return Proceed();
  }
  EndUpdateIfComplete();
}

void SimWorker::EndUpdateIfComplete() {
  Step& step = *step_;
  std::vector<SharedFloats> next = step.input.weights;
  for (size_t p = 0; p < next.size(); ++p) {
    if (!partitions_[p].trainable) continue;
    if (!step.received[p].has_value()) return;
    next[p] = step.received[p]->weights;
  }
  step.input.weights = std::move(next);
  step.received.assign(partitions_.size(), std::nullopt);
  step.sent.clear();
  step.unsent = SendOrder(partitions_);
  ++step.key.update;
  step.opening.continues = step.key.update + 1 < UpdatesOf(step.input);
  step.opening.optimizer = step.key.update % 2;
  step.opening.takes_changes = false;
  step.phase = Phase::kComputing;
  OpenPush();
  After(world_.network.Delay(), [this] { Backward(); });
}

// On the same stream, now or during the next update.
void SimWorker::RepeatGradients() {
  world_.scheduler.After(world_.network.Delay(),
                         [this, connection = connection_, sender = Identity(),
                          key = step_->key, sent = step_->sent] {
                           for (const ReceivedGradient& message : sent) {
                             Send(connection, sender, key, message);
                           }
                         });
}

void SimWorker::SendGradients(bool all) {
  std::vector<int32_t> later;
  for (int32_t partition : step_->unsent) {
    const bool ready =
        step_->backward_left == 0 ||
        GradientCall(step_->calls.size(), partition) >= step_->backward_left;
    const bool next = later.empty() || !world_.scenario.in_order;
    if (next && ready && (all || world_.random.Below(2) == 0)) {
      SendGradient(partition);
    } else {
      later.push_back(partition);
    }
  }
  step_->unsent = std::move(later);
}

void SimWorker::SendGradient(int32_t partition) {
  const Step& step = *step_;
  const auto p = static_cast<size_t>(partition);
  const size_t call = GradientCall(step.calls.size(), partition);
  auto block = std::make_shared<GradientBlock>();
  block->values = step.calls.empty()
                      ? Gradient(step.input, partition, {}, {})
                      : Gradient(step.input, partition, step.forward[call],
                                 *step.backward[call]);
  block->rank = rank_;
  block->incarnation = incarnation_;
  block->key = step.key;
  block->epoch = step.input.epoch;
  block->ranges = RangesOf(step.input);
  block->front_end_state = step.closing.front_end_state;
  ReceivedGradient message{
      .about = {.partition = partition,
                .type = step.assignment.gradients,
                .absent_slices = AbsentSlices(step.input, partitions_[p])}};
  if (UpdatesOf(step.input) > 1 && (partition + step.key.update) % 2 == 1) {
    std::vector<int32_t>& absent = message.about.absent_slices;
    absent.resize(partitions_[p].slices.size());
    std::iota(absent.begin(), absent.end(), 0);
  }
  for (int32_t slice : message.about.absent_slices) {
    int64_t begin = 0;
    for (int32_t s = 0; s < slice; ++s) {
      begin += partitions_[p].slices[static_cast<size_t>(s)].count;
    }
    const int64_t count =
        partitions_[p].slices[static_cast<size_t>(slice)].count;
    std::fill_n(block->values.begin() + begin, count, 0.0f);
  }
  if (message.about.type == ElementType::kBFloat16) {
    block->halves.resize(block->values.size() * 2);
    RoundToBFloat16(reinterpret_cast<const std::byte*>(block->values.data()),
                    static_cast<int64_t>(block->values.size()),
                    block->halves.data());
  }
  message.bytes = CutSomewhere(block, world_.random);
  message.about.sampled_checksum = message.bytes.SampledChecksum();
  step_->sent.push_back(message);
  Send(connection_, Identity(), step.key, message);
}

void SimWorker::Send(const SharedConnection& connection, const Sender& sender,
                     const PushKey& key, const ReceivedGradient& message) {
  const int32_t owner =
      ShardPlace::OwnerOf(message.about.partition, world_.shards.shards());
  if (owner > 0) {
    return world_.shards.ToShard(connection, owner, [=](SimDataShard& shard) {
      shard.Gradient(connection, sender, key, message);
    });
  }
  world_.network.ToServer(connection, StreamKind::kExchange,
                          [=](SimServer& server) {
                            server.Gradient(connection, sender, key, message);
                          });
}

void SimWorker::ClosePush() {
  Step& step = *step_;
  step.closing = {
      .loss_sum = 2 * step.opening.loss_weight,
      .correct = 1,
      .labels = step.opening.samples,
      .batch_norm_calls = std::vector<int32_t>(layout().batch_norms.size()),
      .front_end_state = step.closing.front_end_state};
  const size_t layers = layout().batch_norms.size();
  for (size_t i = 0; i < step.calls.size(); ++i) {
    const CallPlace call = PlaceOf(step.input, step.calls[i]);
    std::vector<int32_t>& counts = step.closing.batch_norm_calls;
    const auto part = static_cast<size_t>(call.part);
    counts.resize(std::max(counts.size(), (part + 1) * layers));
    ++counts[part * layers + static_cast<size_t>(call.layer)];
    if (step.assignment.global_normalization) {
      step.closing.contributions +=
          HasOwnPass(step.input, step.calls[i]) ? 3 : 2;
    } else {
      step.closing.moments.push_back(
          {.layer = call.layer, .call = call.call, .moments = step.local[i]});
    }
  }
  std::sort(step.closing.moments.begin(), step.closing.moments.end(),
            [](const CallMoments& a, const CallMoments& b) {
              return std::tie(a.layer, a.call) < std::tie(b.layer, b.call);
            });
  if (!step.assignment.local_steps.empty()) CloseLocalSteps();
  MiscountClosing();
  world_.network.ToServer(
      connection_, StreamKind::kExchange,
      [connection = connection_, sender = Identity(), key = step.key,
       closing = step.closing](SimServer& server) {
        server.Close(connection, sender, key, closing);
      });
  step.phase = Phase::kAwaitingVerdict;
  if (world_.random.Uniform() < world_.scenario.duplicates) RepeatPush();
  if (step.aborted) {
    Abandon();
    return Proceed();
  }
  FinishIfComplete();
}

// One entry of moments a layer, and each local step with samples is a part.
void SimWorker::CloseLocalSteps() {
  PushClosing& closing = step_->closing;
  std::vector<CallMoments> first;
  for (CallMoments& call : closing.moments) {
    if (call.call > 0) continue;
    call.weight = 0.1 * static_cast<double>(call.moments.count);
    call.updates = 1;
    first.push_back(std::move(call));
  }
  closing.moments = std::move(first);
  const std::vector<int32_t> counts =
      std::exchange(closing.batch_norm_calls,
                    std::vector<int32_t>(step_->assignment.local_steps.size() *
                                         layout().batch_norms.size()));
  for (size_t at = 0; at < closing.batch_norm_calls.size(); ++at) {
    const IndexRange& range =
        step_->assignment.local_steps[at / layout().batch_norms.size()];
    if (range.empty() && !HasOwnData()) continue;
    closing.batch_norm_calls[at] = counts[at % layout().batch_norms.size()];
  }
}

void SimWorker::MiscountClosing() {
  PushClosing& closing = step_->closing;
  const bool more = step_->miscounts == Miscounts::kOneMore;
  if (!more && step_->miscounts != Miscounts::kOneFewer) return;
  int32_t& count = closing.batch_norm_calls.back();
  count += more ? 1 : -1;
}

// Sends the whole push again on the same stream, now or during the next step.
void SimWorker::RepeatPush() {
  const Step& step = *step_;
  world_.scheduler.After(
      world_.network.Delay(),
      [this, connection = connection_, sender = Identity(), key = step.key,
       opening = step.opening, closing = step.closing, sent = step.sent] {
        Network& network = world_.network;
        network.ToServer(connection, StreamKind::kExchange,
                         [=](SimServer& server) {
                           server.Open(connection, sender, key, opening);
                         });
        for (const ReceivedGradient& message : sent) {
          Send(connection, sender, key, message);
        }
        network.ToServer(connection, StreamKind::kExchange,
                         [=](SimServer& server) {
                           server.Close(connection, sender, key, closing);
                         });
      });
}

// Adds the change to what this worker has read, and compares the result with
// the version itself.
void SimWorker::CheckChange(const WeightsMessage& weights) {
  const auto p = static_cast<size_t>(weights.partition);
  const SharedFloats& read = step_->input.weights[p];
  const std::string change = weights.change.ToString();
  FloatBuffer sums(read->size());
  if (step_->opening.takes_changes &&
      weights.version == step_->opening.version.Next() &&
      static_cast<int64_t>(change.size()) == 2 * read->size()) {
    AddBFloat16(reinterpret_cast<const std::byte*>(read->data()),
                reinterpret_cast<const std::byte*>(change.data()), read->size(),
                sums.data());
    if (std::memcmp(sums.data(), weights.weights->data(),
                    static_cast<size_t>(read->size()) * sizeof(float)) == 0) {
      return;
    }
  }
  world_.checker.Fail(
      absl::StrCat("rank ", rank_.value(), " gets a change of partition ",
                   weights.partition, " to version ", weights.version.value(),
                   " that does not lead there from version ",
                   step_->opening.version.value()));
}

void SimWorker::OnWeights(const WeightsMessage& weights) {
  if (step_ == nullptr || step_->key != weights.key) return;
  if (weights.change.size_bytes() > 0) CheckChange(weights);
  auto& received = step_->received[static_cast<size_t>(weights.partition)];
  if (!received.has_value() || received->version <= weights.version) {
    received = weights;
  }
  if (step_->phase == Phase::kAwaitingUpdate) return EndUpdateIfComplete();
  FinishIfComplete();
}

void SimWorker::OnVerdict(const effect::SendVerdict& verdict) {
  // The next assignment is valid even if the worker no longer waits for this
  // push.
  Offer(verdict.verdict.next);
  if (step_ != nullptr && step_->key.Whole() == verdict.key.Whole()) {
    // The run is over.
    if (step_->phase == Phase::kAwaitingUpdate) Abandon();
  }
  if (step_ != nullptr && step_->key.Whole() == verdict.key.Whole()) {
    const bool first = !step_->verdict.has_value();
    step_->verdict = verdict;
    unanswered_.reset();
    if (first) SettleBatch(verdict.verdict);
    FinishIfComplete();
  } else {
    TakeLateVerdict(verdict);
  }
  Proceed();
}

void SimWorker::NoteUnanswered() {
  if (!HasOwnData() || !awaits_verdict() || step_->verdict.has_value()) return;
  unanswered_ = {.key = step_->key.Whole(),
                 .closing = step_->closing,
                 .server_incarnation = connection_->server_incarnation};
}

bool SimWorker::SettleUnanswered(const Assignment& next) {
  if (!unanswered_.has_value()) return true;
  if (connection_->server_incarnation != unanswered_->server_incarnation) {
    // The new server may give the same key to another push.
    GiveUpBatch();
    return true;
  }
  const PushKey key{.sequence = next.sequence, .attempt = next.attempt};
  // The whole push comes again. It may still be void because the first one
  // arrived after all.
  if (key == unanswered_->key) return true;
  if (std::exchange(unanswered_->repeated, true)) return false;
  world_.network.ToServer(
      connection_, StreamKind::kExchange,
      [connection = connection_, sender = Identity(), key = unanswered_->key,
       closing = unanswered_->closing](SimServer& server) {
        server.Close(connection, sender, key, closing);
      });
  return false;
}

void SimWorker::TakeLateVerdict(const effect::SendVerdict& verdict) {
  if (!unanswered_.has_value() || unanswered_->key != verdict.key ||
      unanswered_->server_incarnation != connection_->server_incarnation) {
    return;
  }
  if (absl::StrContains(verdict.verdict.reason, "decided long ago")) {
    return GiveUpBatch();
  }
  unanswered_.reset();
  ++late_verdicts_;
  SettleBatch(verdict.verdict);
}

void SimWorker::SettleBatch(const PushVerdict& verdict) {
  if (!HasOwnData() || !IsApplied(verdict.verdict)) return;
  world_.checker.OnCounted(rank_, connection_->server_incarnation,
                           BatchOf(own_, batch_));
  ++batch_;
}

void SimWorker::GiveUpBatch() {
  unanswered_.reset();
  ++batch_;
  ++batches_given_up_;
}

void SimWorker::FinishIfComplete() {
  const Step& step = *step_;
  if (step.phase != Phase::kAwaitingVerdict || !step.verdict.has_value()) {
    return;
  }
  const PushVerdict& verdict = step.verdict->verdict;
  std::vector<SharedFloats> next = step.input.weights;
  int32_t here = 0;
  for (size_t p = 0; p < next.size(); ++p) {
    const auto& received = step.received[p];
    if (!received.has_value() || received->version != verdict.version) continue;
    next[p] = received->weights;
    ++here;
  }
  if (here < step.verdict->weights_partitions) return;
  if (step.verdict->weights_partitions > 0) {
    version_ = verdict.version;
    weights_ = std::move(next);
    state_ = step.state;
    world_.checker.OnHeld(rank_, version_, state_);
  }
  Abandon();
  Proceed();
}

}  // namespace cohort::sim
