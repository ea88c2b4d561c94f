#pragma once

#include <functional>
#include <string>
#include <utility>

#include "worker/client/client.h"

namespace cohort {

// Forwards every call to another client. Derive from it to change some calls.
// Thread safety: as the other client's.
class ForwardingClient : public Client {
 public:
  // `next` must outlive all calls.
  explicit ForwardingClient(Client& next) : next_(next) {}

  absl::StatusOr<Membership> Join() override { return next_.Join(); }
  absl::StatusOr<Registration> Register(
      const ModelLayout& layout, const RunPlan& plan,
      absl::Span<const absl::Span<const float>> values,
      absl::Span<const LayerStatistics> statistics) override {
    return next_.Register(layout, plan, values, statistics);
  }
  Incarnation incarnation() const override { return next_.incarnation(); }
  absl::StatusOr<Assignment> NextAssignment() override {
    return next_.NextAssignment();
  }
  absl::StatusOr<PulledVersion> Pull(const PullOptions& options) override {
    return next_.Pull(options);
  }
  absl::StatusOr<std::vector<Moments>> Reduce(
      const ReducePass& pass, absl::Span<const Contribution> local) override {
    return next_.Reduce(pass, local);
  }
  absl::Status OpenPush(const PushOpening& opening) override {
    return next_.OpenPush(opening);
  }
  absl::Status SendGradient(int32_t partition, ByteRope gradient,
                            absl::Span<const int32_t> absent_slices) override {
    return next_.SendGradient(partition, std::move(gradient), absent_slices);
  }
  absl::StatusOr<std::vector<ByteRope>> AwaitUpdate() override {
    return next_.AwaitUpdate();
  }
  absl::StatusOr<PushResult> ClosePush(const PushClosing& closing) override {
    return next_.ClosePush(closing);
  }
  absl::StatusOr<PushVerdict> RepeatClosing(
      const PushKey& key, const PushClosing& closing) override {
    return next_.RepeatClosing(key, closing);
  }
  absl::StatusOr<bool> HoldState(const StateHolding& holding) override {
    return next_.HoldState(holding);
  }
  absl::Status GiveState(Version version, absl::string_view bytes) override {
    return next_.GiveState(version, bytes);
  }
  absl::StatusOr<TakenState> TakeState() override { return next_.TakeState(); }
  absl::Status ReportEvaluation(const EvaluationSums& sums) override {
    return next_.ReportEvaluation(sums);
  }
  absl::Status ReportMoments(absl::Span<const CallMoments> calls) override {
    return next_.ReportMoments(calls);
  }
  void Leave(const Departure& departure) override { next_.Leave(departure); }
  void RequestStop() override { next_.RequestStop(); }
  void SetObserver(std::function<void(const std::string&)> observer) override {
    next_.SetObserver(std::move(observer));
  }

 protected:
  Client& next() const { return next_; }

 private:
  Client& next_;
};

}  // namespace cohort
