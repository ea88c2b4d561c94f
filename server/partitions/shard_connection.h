#pragma once

#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"

namespace cohort {

// The state of shard 0's connection to a data shard: what was heard of it, and
// what its end means. A state machine without gRPC, threads or clocks, so that
// the simulator runs it too. An attempt that fails, because the data shard was
// killed or stopped as it was connected to, is followed by another one.
// Thread safety: none; the owner guards it.
class ShardConnection {
 public:
  // `name` is that of the data shard in errors: "data shard 1 at HOST:PORT". It
  // is lost after `silent_checks_max` calls of CheckAlive without a message
  // between them.
  ShardConnection(std::string name, int silent_checks_max)
      : name_(std::move(name)), silent_checks_max_(silent_checks_max) {}

  // ---- events
  // An attempt to connect begins.
  void Begin();
  // A message has arrived, whatever it is.
  void Heard();
  // The data shard has taken the attachment.
  void Attached() { attached_ = true; }
  // It has been asked to stop, and does so once the connection is over.
  void Leaving() { leaving_ = true; }
  // Returns true if the data shard has just been silent for too long: the
  // connection is to be cancelled.
  bool CheckAlive();
  // It is ended here on purpose: what the data shard held is not needed.
  void Close() { closing_ = true; }
  // The connection is over. Returns true if the data shard is lost by that.
  bool Ended(const absl::Status& end);

  // ---- queries
  // The data shard is there and has taken the attachment.
  bool open() const { return attached_ && !end_.has_value(); }
  // The present attempt has succeeded or failed.
  bool settled() const { return attached_ || end_.has_value(); }
  // The result of an attempt that is settled; absent: try again.
  std::optional<absl::Status> result() const;
  // Whether partitions can be fetched.
  // Errors: Unavailable: the connection is closed; those of its end.
  absl::Status Usable() const;

 private:
  std::string WhyEnded(const absl::Status& end) const;

  const std::string name_;
  const int silent_checks_max_;
  bool attached_ = false;
  bool closing_ = false;
  bool leaving_ = false;
  std::optional<absl::Status> end_;
  // Since the last message.
  int silent_checks_ = 0;
};

}  // namespace cohort
