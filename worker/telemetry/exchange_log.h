#pragma once

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/push.h"
#include "worker/client/client.h"
#include "worker/client/forwarding_client.h"

namespace cohort {

// A client that also writes what the worker sent to the server and what the
// server answered, for the question "which push is in which version, and with
// which bits". One JSON object a line; each is flushed at once, so a killed
// process loses none. Lines are appended to an existing file, so a replacement
// continues in the file of its predecessor.
//
// Every line has "event", "rank", "incarnation" and "begin_us", "end_us": when
// the call began and ended, wall clock, microseconds since 1970. A call that
// failed has "error" in place of its results. Events:
//
//   join        "run", "version"
//   assignment  "kind"; of "train" also "sequence", "attempt", "version",
//               "members", "epoch", "range"
//   pull        "requested" (null: the newest), "statistics", "version",
//               "weights"
//   push        "sequence", "attempt", "version" (the weights that were read),
//               "samples", "gradients"; written before the push is closed
//   verdict     "sequence", "attempt", "verdict", "version", "duplicate",
//               "staleness", "weights"
//   leave       "reason"
//
// "weights" and "gradients" are checksums, one a partition; "" where nothing
// was sent.
//
// Thread safety: as the client's.
class ExchangeLog final : public ForwardingClient {
 public:
  // `client` must outlive all calls.
  // Errors: FailedPrecondition naming the path and why it cannot be written.
  static absl::StatusOr<std::unique_ptr<ExchangeLog>> Open(
      const std::string& path, Client& client);

  absl::StatusOr<Membership> Join() override;
  absl::StatusOr<Registration> Register(
      const ModelLayout& layout, const RunPlan& plan,
      absl::Span<const absl::Span<const float>> values,
      absl::Span<const LayerStatistics> statistics) override;
  absl::StatusOr<Assignment> NextAssignment() override;
  absl::StatusOr<PulledVersion> Pull(const PullOptions& options) override;
  absl::Status OpenPush(const PushOpening& opening) override;
  absl::Status SendGradient(int32_t partition, ByteRope gradient,
                            absl::Span<const int32_t> absent_slices) override;
  absl::StatusOr<std::vector<ByteRope>> AwaitUpdate() override;
  absl::StatusOr<PushResult> ClosePush(const PushClosing& closing) override;
  absl::StatusOr<PushVerdict> RepeatClosing(
      const PushKey& key, const PushClosing& closing) override;
  void Leave(const Departure& departure) override;

 private:
  class Line;

  explicit ExchangeLog(Client& client) : ForwardingClient(client) {}

  Line Begin(absl::string_view event);
  void Write(Line line);
  // The gradients of the push in progress.
  void WritePush(absl::string_view event);
  void WriteVerdict(Line line, const PushKey& key, const PushVerdict& verdict,
                    const std::vector<ByteRope>& weights);

  std::ofstream file_;
  bool failed_ = false;
  Rank rank_;
  // The push in progress.
  PushKey key_;
  PushOpening opening_;
  std::vector<std::string> gradients_;
};

}  // namespace cohort
