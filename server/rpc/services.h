#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/ids.h"
#include "server/shard/shard.h"

namespace grpc {
class Service;
}  // namespace grpc

// The gRPC services of a shard. They translate and forward, and decide
// nothing. `shard` must outlive them, and they the gRPC server.
namespace cohort {

std::unique_ptr<grpc::Service> MakeMembershipService(Shard& shard);
std::unique_ptr<grpc::Service> MakeParametersService(Shard& shard);
std::unique_ptr<grpc::Service> MakeMomentsService(Shard& shard);

// What an operator may ask for beside what the shard can do itself. Both
// functions may block and return the version that was written.
struct AdminActions {
  std::function<absl::StatusOr<Version>()> checkpoint;
  std::function<absl::StatusOr<Version>()> export_model;
  // False: there is no place for checkpoints.
  bool keeps_checkpoints = false;
  // Called whenever somebody asks for the status; must not block. May be null.
  std::function<void()> on_status;
  // host:port of the operations port; empty: there is none. May be null.
  std::function<std::string()> ops_address;
};

std::unique_ptr<grpc::Service> MakeAdminService(Shard& shard,
                                                AdminActions actions);

}  // namespace cohort
