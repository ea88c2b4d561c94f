#include "server/partitions/shard_connection.h"

#include "absl/strings/str_cat.h"

namespace cohort {

void ShardConnection::Begin() {
  attached_ = false;
  leaving_ = false;
  end_.reset();
}

void ShardConnection::Heard() {
  // A late message does not hide why the connection is being ended.
  if (silent_checks_ < silent_checks_max_) silent_checks_ = 0;
}

bool ShardConnection::CheckAlive() {
  return open() && ++silent_checks_ == silent_checks_max_;
}

bool ShardConnection::Ended(const absl::Status& end) {
  // A cancelled stream was ended here, because the data shard leaves or is
  // silent. Another attempt may follow; only its caller gives up.
  const bool retry = end.ok() || absl::IsCancelled(end);
  end_ = absl::Status(retry ? absl::StatusCode::kUnavailable : end.code(),
                      absl::StrCat(name_, ": ", WhyEnded(end)));
  return attached_ && !closing_;
}

std::string ShardConnection::WhyEnded(const absl::Status& end) const {
  if (silent_checks_ >= silent_checks_max_) {
    return absl::StrCat("it has said nothing for ", silent_checks_,
                        " s (--shard_lease)");
  }
  if (leaving_) return "it is being stopped";
  return end.ok() ? "it ended the connection" : std::string(end.message());
}

std::optional<absl::Status> ShardConnection::result() const {
  if (open()) return absl::OkStatus();
  if (absl::IsUnavailable(*end_)) return std::nullopt;
  return end_;
}

absl::Status ShardConnection::Usable() const {
  if (end_.has_value()) return *end_;
  return closing_
             ? absl::UnavailableError("the connection to data shards is closed")
             : absl::OkStatus();
}

}  // namespace cohort
