#pragma once

#include "absl/status/statusor.h"
#include "common/ids.h"
#include "server/core/data/shard_messages.h"
#include "server/core/model/model_snapshot.h"

namespace cohort {

// The connection to one data shard, as shard 0 sees it. Once it is over, what
// is sent is dropped.
// Thread safety: safe.
class DataLink {
 public:
  virtual ~DataLink() = default;
  // Queues the command and returns at once. Commands go in order.
  virtual void Send(ShardCommand command) = 0;
};

}  // namespace cohort
