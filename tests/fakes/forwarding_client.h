#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "worker/client/client.h"

namespace cohort {

// Passes every call on; override what a test wants to change.
class ForwardingClient : public Client {
 public:
  explicit ForwardingClient(std::unique_ptr<Client> client)
      : client_(std::move(client)) {}

  absl::StatusOr<Membership> Join() override { return client_->Join(); }
  absl::StatusOr<Registration> Register(
      const ModelLayout& layout, const RunPlan& plan,
      absl::Span<const absl::Span<const float>> values,
      absl::Span<const LayerStatistics> statistics) override {
    return client_->Register(layout, plan, values, statistics);
  }
  Incarnation incarnation() const override { return client_->incarnation(); }
  absl::StatusOr<Assignment> NextAssignment() override {
    return client_->NextAssignment();
  }
  absl::StatusOr<PulledVersion> Pull(const PullWish& wish) override {
    return client_->Pull(wish);
  }
  absl::StatusOr<std::vector<Moments>> Reduce(
      const ReducePass& pass, absl::Span<const CallMoments> local) override {
    return client_->Reduce(pass, local);
  }
  absl::Status OpenPush(const PushOpening& opening) override {
    return client_->OpenPush(opening);
  }
  absl::Status SendGradient(int32_t partition, ByteRope gradient,
                            absl::Span<const int32_t> absent) override {
    return client_->SendGradient(partition, std::move(gradient), absent);
  }
  absl::StatusOr<PushResult> ClosePush(const PushClosing& closing) override {
    return client_->ClosePush(closing);
  }
  absl::Status ReportEvaluation(const EvaluationSums& sums) override {
    return client_->ReportEvaluation(sums);
  }
  absl::Status ReportMoments(absl::Span<const CallMoments> calls) override {
    return client_->ReportMoments(calls);
  }
  void Leave(const std::string& reason) override {
    if (client_ != nullptr) client_->Leave(reason);
  }
  void RequestStop() override { client_->RequestStop(); }
  void SetObserver(std::function<void(const std::string&)> observer) override {
    client_->SetObserver(std::move(observer));
  }

 protected:
  Client& next() { return *client_; }
  // The end of a process: all its streams break. Only Leave may be called
  // afterwards.
  void Die() { client_.reset(); }

 private:
  std::unique_ptr<Client> client_;
};

}  // namespace cohort
