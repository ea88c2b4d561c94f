#include "worker/client/bulk_call.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace cohort {

BulkCall::BulkCall(const BulkTarget& target, const std::string& method,
                   const std::string& name)
    : link_(*target.link),
      name_(name),
      server_(target.server),
      patience_(target.patience),
      deadline_(target.deadline),
      stream_(
          target.channel, method, link_,
          [this](grpc::ByteBuffer& message) {
            {
              MutexLock lock(link_.mu);
              received_.emplace_back();
              received_.back().Swap(&message);
            }
            link_.Notify();
            return absl::OkStatus();
          },
          [this](const absl::Status& end) {
            {
              MutexLock lock(link_.mu);
              end_ = end.ok() ? end : link_.NormalizedEnd(name_, end, server_);
            }
            link_.Notify();
          }) {}

absl::Status BulkCall::Send(const grpc::ByteBuffer& message) {
  const absl::Status status = stream_.Send(message, deadline_);
  if (status.ok()) NoteProgress();
  if (!absl::IsUnavailable(status)) return status;
  // The call's final status, which is on its way, says why the stream is over.
  MutexLock lock(link_.mu);
  while (!end_.has_value()) {
    COHORT_RETURN_IF_ERROR(link_.WaitLocked(deadline_));
  }
  return end_->ok() ? link_.NormalizedEnd(name_, *end_, server_) : *end_;
}

absl::Status BulkCall::WaitLocked() {
  const absl::Status status = link_.WaitLocked(deadline_);
  if (!absl::IsDeadlineExceeded(status)) return status;
  return absl::DeadlineExceededError(
      absl::StrCat(status.message(), " during ", name_));
}

absl::Status BulkCall::AwaitAnswer(
    const std::function<Instant(const Assignment& wait)>& on_wait) {
  for (;;) {
    std::optional<Assignment> wait;
    {
      MutexLock lock(link_.mu);
      while (received_.empty() && !end_.has_value() && !wait.has_value()) {
        wait = link_.tracker.TakeWait();
        if (!wait.has_value()) COHORT_RETURN_IF_ERROR(WaitLocked());
      }
    }
    if (!wait.has_value()) return absl::OkStatus();
    deadline_ = on_wait(*wait);
  }
}

absl::StatusOr<std::optional<grpc::ByteBuffer>> BulkCall::Receive() {
  MutexLock lock(link_.mu);
  COHORT_RETURN_IF_ERROR(link_.CheckLocked());
  while (received_.empty()) {
    if (end_.has_value()) {
      if (!end_->ok()) return *end_;
      return std::nullopt;
    }
    COHORT_RETURN_IF_ERROR(WaitLocked());
  }
  std::optional<grpc::ByteBuffer> message(std::move(received_.front()));
  received_.pop_front();
  NoteProgress();
  return message;
}

void BulkCall::NoteProgress() {
  deadline_ = std::max(deadline_, link_.clock().Now() + patience_);
}

}  // namespace cohort
