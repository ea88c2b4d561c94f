#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/assignment.h"
#include "common/byte_rope.h"
#include "common/evaluation_sums.h"
#include "common/model_layout.h"
#include "common/moments.h"
#include "common/push.h"
#include "worker/client/client.h"

namespace cohort {

// A parameter server for one worker, without a network: plain SGD, and a script
// of assignments. Each is handed out until it has ended, with the version to
// read and a rising attempt number. Then the run is finished.
//
// Thread safety: none; RequestStop too must come from the driving thread.
class FakeClient final : public Client {
 public:
  struct Push {
    Assignment assignment;
    PushOpening opening;
    PushClosing closing;
    // One entry a partition; empty if none was sent.
    std::vector<std::vector<float>> gradients;
    std::vector<std::vector<int32_t>> absent_slices;
    // For each partition: total number of rendezvous when it was sent.
    std::vector<size_t> reduced_before;
  };

  explicit FakeClient(std::vector<Assignment> script)
      : script_(std::move(script)) {}

  // Settings of the server.
  uint64_t seed = 11;
  double learning_rate = 0.5;
  int64_t partition_bytes = 1 << 20;
  std::vector<LayerStatistics> statistics;
  // Whether the script's end tells the rank that its work is unfinished.
  bool ends_unfinished = false;
  // Whether it tells the rank that the run has failed.
  bool ends_failed = false;
  // The worker's incarnation, as counted by the server.
  Incarnation current{1};
  // Each is called first by the method it is named after; an error is returned.
  std::function<absl::Status(const ReduceKey&)> on_reduce;
  std::function<absl::Status()> on_pull;
  std::function<absl::Status(int32_t partition)> on_gradient;
  std::function<absl::Status()> on_close;
  std::function<absl::StatusOr<PushVerdict>(const PushKey&)> on_repeat;
  // Verdicts of the pushes, in order; kApplied after the last.
  std::vector<Verdict> verdicts;

  // Records of the worker's calls.
  ModelLayout layout;
  RunPlan plan;
  std::vector<Partition> partitions;
  std::vector<std::vector<float>> values;
  std::vector<Push> pushes;
  std::vector<ReduceKey> reduced;
  std::vector<EvaluationSums> evaluations;
  // Kinds of statistics that were requested, and batches collected.
  std::vector<std::string> kinds_pulled;
  std::vector<std::vector<CallMoments>> collected;
  int32_t weight_pulls = 0;
  std::optional<std::string> left;

  // Number of rendezvous before the first push sent the partition that begins
  // with the parameter `name`.
  size_t ReducedBefore(const std::string& name) const {
    for (size_t p = 0; p < partitions.size(); ++p) {
      const auto first =
          static_cast<size_t>(partitions[p].slices.front().parameter);
      if (layout.parameters[first].name == name) {
        return pushes.front().reduced_before[p];
      }
    }
    return 0;
  }

  absl::StatusOr<Membership> Join() override {
    return Membership{.run_id = "fake", .seed = seed, .workers = 1};
  }

  absl::StatusOr<Registration> Register(
      const ModelLayout& model_layout, const RunPlan& run_plan,
      absl::Span<const absl::Span<const float>> initial,
      absl::Span<const LayerStatistics> initial_statistics) override {
    if (absl::Status valid = Validate(model_layout); !valid.ok()) return valid;
    layout = model_layout;
    plan = run_plan;
    partitions = MakePartitions(layout, partition_bytes);
    for (const absl::Span<const float> one : initial) {
      values.emplace_back(one.begin(), one.end());
    }
    if (statistics.empty()) {
      statistics.assign(initial_statistics.begin(), initial_statistics.end());
    }
    return Registration{.partitions = partitions,
                        .loss_reference = plan.loss_reference};
  }

  Incarnation incarnation() const override { return current; }

  absl::StatusOr<Assignment> NextAssignment() override {
    if (stopped_) return absl::CancelledError("stop requested");
    if (next_ >= script_.size()) {
      return Assignment{.kind = AssignmentKind::kFinished,
                        .reason = "the script is over",
                        .unfinished = ends_unfinished,
                        .failed = ends_failed};
    }
    Assignment assignment = script_[next_];
    assignment.sequence = Sequence(static_cast<int64_t>(next_) + 1);
    assignment.attempt = Attempt(attempt_++);
    assignment.version = version_;
    current_ = {.assignment = assignment};
    current_.gradients.resize(partitions.size());
    current_.absent_slices.resize(partitions.size());
    current_.reduced_before.resize(partitions.size());
    return assignment;
  }

  absl::StatusOr<PulledVersion> Pull(const PullOptions& options) override {
    if (on_pull) {
      if (absl::Status status = on_pull(); !status.ok()) return status;
    }
    if (options.version.has_value() && *options.version != version_) {
      return absl::OutOfRangeError(absl::StrCat("got version ",
                                                options.version->value(),
                                                ", want ", version_.value()));
    }
    PulledVersion pulled{
        .version = version_, .layout = layout, .partitions = partitions};
    if (options.weights) {
      ++weight_pulls;
      pulled.weights = AllWeights(/*frozen_too=*/true);
    }
    if (options.statistics) {
      kinds_pulled.push_back(options.statistics_kind);
      pulled.statistics = statistics;
    }
    return pulled;
  }

  absl::StatusOr<std::vector<Moments>> Reduce(
      const ReducePass& pass, absl::Span<const Contribution> local) override {
    std::vector<Moments> results;
    for (const Contribution& call : local) {
      const ReduceKey key{
          .step = pass.step, .attempt = pass.attempt, .place = call.place};
      reduced.push_back(key);
      if (on_reduce) {
        if (absl::Status status = on_reduce(key); !status.ok()) return status;
      }
      results.push_back(call.moments);
    }
    return results;
  }

  absl::Status OpenPush(const PushOpening& opening) override {
    current_.opening = opening;
    return absl::OkStatus();
  }

  absl::Status SendGradient(int32_t partition, ByteRope gradient,
                            absl::Span<const int32_t> absent_slices) override {
    if (on_gradient) {
      if (absl::Status status = on_gradient(partition); !status.ok()) {
        return status;
      }
    }
    const auto p = static_cast<size_t>(partition);
    const int64_t elements = partitions[p].elements;
    // Without any gradient, the bytes may be left out.
    const bool none = gradient.size_bytes() == 0 &&
                      absent_slices.size() == partitions[p].slices.size();
    if ((gradient.size_bytes() != elements * 4 && !none) ||
        !partitions[p].trainable || !current_.gradients[p].empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("partition ", partition, " with ", gradient.size_bytes(),
                       " bytes does not fit"));
    }
    std::vector<float> copy(static_cast<size_t>(elements));
    if (!none) {
      gradient.CopyTo(absl::MakeSpan(reinterpret_cast<std::byte*>(copy.data()),
                                     copy.size() * 4));
    }
    current_.gradients[p] = std::move(copy);
    current_.absent_slices[p].assign(absent_slices.begin(),
                                     absent_slices.end());
    current_.reduced_before[p] = reduced.size();
    return absl::OkStatus();
  }

  // The versions keep their weights.
  absl::StatusOr<std::vector<ByteRope>> AwaitUpdate() override {
    const std::vector<std::vector<float>> before = values;
    Apply(current_);
    current_.gradients.assign(partitions.size(), {});
    std::vector<ByteRope> updated = AllWeights(/*frozen_too=*/false);
    values = before;
    return updated;
  }

  absl::StatusOr<PushResult> ClosePush(const PushClosing& closing) override {
    if (on_close) {
      if (absl::Status status = on_close(); !status.ok()) return status;
    }
    const Verdict verdict = pushes.size() < verdicts.size()
                                ? verdicts[pushes.size()]
                                : Verdict::kApplied;
    current_.closing = closing;
    PushResult result;
    result.verdict.verdict = verdict;
    result.weights.resize(partitions.size());
    if (verdict == Verdict::kApplied) {
      Apply(current_);
      result.weights = AllWeights(/*frozen_too=*/false);
    }
    version_ = version_.Next();
    result.verdict.version = version_;
    pushes.push_back(std::move(current_));
    EndAssignment();
    return result;
  }

  absl::StatusOr<PushVerdict> RepeatClosing(
      const PushKey& key, const PushClosing& /*closing*/) override {
    return on_repeat(key);
  }

  absl::StatusOr<bool> HoldState(const StateHolding&) override { return false; }
  absl::Status GiveState(Version, absl::string_view) override {
    return absl::OkStatus();
  }
  absl::StatusOr<TakenState> TakeState() override {
    return TakenState{.initial = true};
  }

  absl::Status ReportEvaluation(const EvaluationSums& sums) override {
    evaluations.push_back(sums);
    EndAssignment();
    return absl::OkStatus();
  }

  absl::Status ReportMoments(absl::Span<const CallMoments> calls) override {
    collected.emplace_back(calls.begin(), calls.end());
    EndAssignment();
    return absl::OkStatus();
  }

  void Leave(const Departure& departure) override { left = departure.reason; }
  void RequestStop() override { stopped_ = true; }
  void SetObserver(std::function<void(const std::string&)>) override {}

  Version version() const { return version_; }

 private:
  void EndAssignment() {
    ++next_;
    attempt_ = 0;
  }

  // w <- w - rate * g * n_ref / (number of labels).
  void Apply(const Push& push) {
    if (push.opening.loss_weight == 0) return;
    const double scale =
        learning_rate * plan.loss_reference / push.opening.loss_weight;
    for (size_t p = 0; p < partitions.size(); ++p) {
      size_t at = 0;
      for (const Slice& slice : partitions[p].slices) {
        for (int64_t i = 0; i < slice.count && partitions[p].trainable; ++i) {
          float& w = values[static_cast<size_t>(slice.parameter)]
                           [static_cast<size_t>(slice.offset + i)];
          w = static_cast<float>(w - scale * push.gradients[p][at++]);
        }
      }
    }
  }

  std::vector<ByteRope> AllWeights(bool frozen_too) const {
    std::vector<ByteRope> ropes(partitions.size());
    for (size_t p = 0; p < partitions.size(); ++p) {
      if (!partitions[p].trainable && !frozen_too) continue;
      for (const Slice& slice : partitions[p].slices) {
        const float* from =
            values[static_cast<size_t>(slice.parameter)].data() + slice.offset;
        const ByteRope copy = ByteRope::Copy(
            absl::MakeConstSpan(reinterpret_cast<const std::byte*>(from),
                                static_cast<size_t>(slice.count) * 4));
        for (const ByteRope::Piece& piece : copy.pieces()) {
          ropes[p].Append(piece.bytes, piece.owner);
        }
      }
    }
    return ropes;
  }

  const std::vector<Assignment> script_;
  size_t next_ = 0;
  int32_t attempt_ = 0;
  Version version_;
  Push current_;
  bool stopped_ = false;
};

}  // namespace cohort
