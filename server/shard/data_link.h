#pragma once

#include "server/core/commands.h"
#include "server/core/data/shard_node.h"

namespace cohort {

// The way to one shard, as the core's process sees it. Once it is over, what is
// sent is dropped.
// Thread safety: safe.
class DataLink {
 public:
  virtual ~DataLink() = default;
  // Both queue and return at once; what is sent goes in order.
  virtual void Install(Installation installation) = 0;
  virtual void Send(ShardCommand command) = 0;
};

}  // namespace cohort
