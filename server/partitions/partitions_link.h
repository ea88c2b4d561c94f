#pragma once

#include "server/core/model/commands.h"
#include "server/partitions/partitions.h"

namespace cohort {

// The way to one shard, as the core's process sees it. Once it is over, what is
// sent is dropped.
// Thread safety: safe.
class PartitionsLink {
 public:
  virtual ~PartitionsLink() = default;
  // Both queue and return at once; what is sent goes in order.
  virtual void Install(Installation installation) = 0;
  virtual void Send(ShardCommand command) = 0;
};

}  // namespace cohort
