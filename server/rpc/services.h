#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "common/model_layout.h"
#include "server/access/audit_log.h"
#include "server/local/local_door.h"
#include "server/local/local_inbox.h"
#include "server/local/local_peer.h"
#include "server/metrics/run_figures.h"
#include "server/rpc/call_counts.h"
#include "server/rpc/change_waits.h"
#include "server/run/kept_states.h"
#include "server/run/run_host.h"

namespace grpc {
class Service;
}  // namespace grpc

// The gRPC services of a shard. They translate and forward, and decide nothing.
// `run` and `counts` must outlive the services, and the services must outlive
// the gRPC server.
namespace cohort {

// `local` lets workers of this host share memory, and must outlive the
// services; null: none may.
std::unique_ptr<grpc::Service> MakeMembershipService(RunHost& run,
                                                     CallCounts& counts,
                                                     LocalDoor* local);
std::unique_ptr<grpc::Service> MakeParametersService(RunHost& run,
                                                     CallCounts& counts,
                                                     LocalDoor* local);
std::unique_ptr<grpc::Service> MakeMomentsService(RunHost& run,
                                                  CallCounts& counts);

// What is done for the state that the workers' programs keep.
struct KeptStateActions {
  // Must outlive the service; never null.
  KeptStates* states = nullptr;
  bool keeps_checkpoints = false;
  // That of `version` is lost. Returns whether the run continues from a
  // checkpoint, in another server; this one then stops. Must not block.
  std::function<bool(Version version)> continues;
};
std::unique_ptr<grpc::Service> MakeKeptStateService(RunHost& run,
                                                    KeptStateActions actions);

// The services of a data shard in a process of its own: for shard 0, and for
// workers Exchange and Pull. `host` must outlive them.
std::unique_ptr<grpc::Service> MakeDataShardsService(PartitionsHost& host,
                                                     CallCounts& counts);
std::unique_ptr<grpc::Service> MakeDataParametersService(PartitionsHost& host,
                                                         CallCounts& counts);
// Moments.Reduce for a worker of this host, without gRPC: the messages are the
// same. `run` must outlive the service.
std::shared_ptr<LocalService> MakeLocalReduce(
    RunHost& run, Rank rank, Incarnation incarnation,
    const std::shared_ptr<LocalPeer>& peer);
// The bytes of all answers that may wait for a worker with this model at a
// time, as LocalNeeds::message_bytes.
int64_t LocalMessageBytes(const ModelLayout& layout);

// Operator actions that the run cannot do itself. `checkpoint` and
// `export_model` may block and return the version that was written. The
// argument is for how long a checkpoint may wait for what belongs to it.
struct AdminActions {
  std::function<absl::StatusOr<Version>(absl::Duration)> checkpoint;
  std::function<absl::StatusOr<Version>()> export_model;
  // False if there is no directory for checkpoints.
  bool keeps_checkpoints = false;
  // The figures of this moment; never null. Must not block.
  std::function<SharedFigures()> figures;
  // Called at each request for the status; must not block. May be null.
  std::function<void()> on_status;
  // Called once the run was drained on request, with the reason. May be null.
  std::function<void(const std::string&)> on_drained;
  // Records calls that change the run; must outlive the service. Null: none.
  AuditLog* audit = nullptr;
  // host:port of the operations port; empty if there is none. May be null.
  std::function<std::string()> ops_address;
  // When the server's certificate expires; InfiniteFuture without one. May be
  // null.
  std::function<absl::Time()> certificate_end;
  // Calls that wait for a change; RunHostOptions::on_policy_moved checks them.
  ChangeWaits* change_waits = nullptr;
};

std::unique_ptr<grpc::Service> MakeAdminService(RunHost& run,
                                                AdminActions actions);

}  // namespace cohort
