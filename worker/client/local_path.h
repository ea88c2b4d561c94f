#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/v1/membership.pb.h"
#include "common/model_layout.h"
#include "worker/client/local_link.h"
#include "worker/client/local_mode.h"

namespace cohort {

// How gradients and weights travel.
struct LocalPath {
  // Null if no memory is shared.
  std::unique_ptr<LocalLink> memory;
  // One of kTransportNames.
  std::string transport;
  // One sentence for people.
  std::string text;
};

// Takes shared memory where it works and `mode` allows it, else the connection
// to `server`. `offer` is that of the newest join, empty if there was none.
// `partitions` must outlive the path.
// Errors: FailedPrecondition: `mode` wants shared memory, which does not work.
absl::StatusOr<LocalPath> ChooseLocalPath(
    LocalMode mode, const std::string& server, const v1::LocalOffer& offer,
    const std::vector<Partition>& partitions);

// The same for a run with several shards: workers reach data shards over TCP
// only. Errors: the same.
absl::StatusOr<LocalPath> PathToShards(LocalMode mode);

}  // namespace cohort
