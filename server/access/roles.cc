#include "server/access/roles.h"

namespace cohort {

absl::Span<const MethodRights> RightsTable() {
  constexpr PeerRole kWorker = PeerRole::kWorker;
  constexpr PeerRole kViewer = PeerRole::kViewer;
  constexpr PeerRole kOperator = PeerRole::kOperator;
  constexpr int32_t kFirstServer = 0;
  static const std::vector<MethodRights> table = {
      {"/cohort.v1.Membership/Session", {kWorker}},
      {"/cohort.v1.Membership/Report", {kWorker}},
      {"/cohort.v1.Parameters/Register", {kWorker}},
      {"/cohort.v1.Parameters/Exchange", {kWorker}},
      // Operators score live runs. Viewers, who may hold no more than a token,
      // do not get the weights.
      {"/cohort.v1.Parameters/Pull", {kWorker, kOperator}},
      // A data shard has a server's certificate, too, and must not take the
      // others over.
      {"/cohort.v1.DataShards/Attach", {PeerRole::kServer}, kFirstServer},
      {"/cohort.v1.DataShards/Fetch", {PeerRole::kServer}, kFirstServer},
      {"/cohort.v1.Moments/Reduce", {kWorker}},
      {"/cohort.v1.KeptState/Hold", {kWorker}},
      {"/cohort.v1.KeptState/Give", {kWorker}},
      {"/cohort.v1.KeptState/Take", {kWorker}},
      {"/cohort.v1.Admin/GetStatus", {kViewer, kOperator}},
      {"/cohort.v1.Admin/WatchStatus", {kViewer, kOperator}},
      {"/cohort.v1.Admin/GetPolicy", {kViewer, kOperator}},
      {"/cohort.v1.Admin/SetPolicy", {kOperator}},
      {"/cohort.v1.Admin/Checkpoint", {kOperator}},
      {"/cohort.v1.Admin/Export", {kOperator}},
      {"/cohort.v1.Admin/Drain", {kOperator}},
      {"/cohort.v1.Admin/Evict", {kOperator}},
      {"/cohort.v1.Admin/SetLogLevel", {kOperator}},
      {"/cohort.v1.Admin/CollectStatistics", {kOperator}},
      // Says only that the server serves.
      {"/grpc.health.v1.Health/Check", {}},
      {"/grpc.health.v1.Health/Watch", {}},
  };
  return table;
}

const MethodRights* RightsOf(absl::string_view path) {
  for (const MethodRights& rights : RightsTable()) {
    if (rights.path == path) return &rights;
  }
  return nullptr;
}

}  // namespace cohort
