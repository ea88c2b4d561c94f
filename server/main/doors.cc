#include "server/main/doors.h"

#include <grpcpp/impl/service_type.h>

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/log/log.h"
#include "common/ops/process_collector.h"
#include "common/status_macros.h"
#include "common/wire/security.h"
#include "server/rpc/services.h"

namespace cohort {
namespace {

// For calls that are still in progress when the server stops.
constexpr absl::Duration kCallGrace = absl::Seconds(2);
// For people and scripts. Files for workers must remain.
constexpr int64_t kAdminConnectionsMax = 256;

}  // namespace

absl::Status Doors::OpenLocal(RunHost& run,
                              std::shared_ptr<const SharedFloatFiles> weights) {
  if (weights == nullptr) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<LocalDoor>> door = LocalDoor::Open(
      {.directory = options_.local_dir,
       .weights = std::move(weights),
       .needs = [&run]() -> std::optional<LocalNeeds> {
         const SharedModel model = run.partitions().model();
         if (model == nullptr) return std::nullopt;
         return LocalNeeds{.partitions = model->partitions,
                           .message_bytes = LocalMessageBytes(model->layout)};
       },
       .serve =
           [&run](Rank rank, Incarnation incarnation,
                  const std::shared_ptr<LocalPeer>& peer) {
             return MakeLocalReduce(run, rank, incarnation, peer);
           },
       .arena_bytes_max = MemoryLimitBytes() / 2},
      counts_.clock);
  if (door.ok()) {
    local_ = *std::move(door);
    return absl::OkStatus();
  }
  const std::string failed = absl::StrCat(
      "--local: no socket for shared memory: ", door.status().message(),
      "; set --local_dir to a folder "
      "that this user can write to");
  if (options_.local == "shm") return absl::UnavailableError(failed);
  Log(LogLevel::kWarning,
      absl::StrCat(failed, "; workers of this host do without"));
  return absl::OkStatus();
}

absl::Status Doors::ListenForAdmin(Transport::Services services) {
  if (services.empty()) return absl::OkStatus();
  COHORT_ASSIGN_OR_RETURN(
      admin_, Transport::Start({.flag = "--admin_listen",
                                .listen = options_.admin_listen,
                                .security = security_.security(),
                                .access = security_.access(),
                                .connections_max = kAdminConnectionsMax},
                               std::move(services), counts_));
  if (!security_.encrypted() && !admin_->address().loopback()) {
    Log(LogLevel::kWarning,
        absl::StrCat("--insecure: any client that can reach ", admin_address(),
                     " can read, change and stop this run"));
  }
  return absl::OkStatus();
}

absl::Status Doors::Listen(
    Transport::Services services, int64_t inflight_bytes_max,
    std::function<std::string(absl::string_view method)> unserved) {
  COHORT_ASSIGN_OR_RETURN(
      transport_, Transport::Start({.listen = options_.listen,
                                    .workers = options_.coordinator.workers,
                                    .inflight_bytes_max = inflight_bytes_max,
                                    .security = security_.security(),
                                    .access = security_.access(),
                                    .connections_per_address =
                                        options_.connections_per_address,
                                    .unserved = std::move(unserved)},
                                   std::move(services), counts_));
  return absl::OkStatus();
}

void Doors::LogReach() const {
  if (security_.encrypted()) {
    Log(LogLevel::kInfo,
        absl::StrCat("connections are encrypted; this server is ",
                     security_.security()->identity()->Uri(),
                     ", its certificate is valid until ",
                     absl::FormatTime(security_.not_after())));
  } else if (!address().loopback()) {
    Log(LogLevel::kWarning,
        absl::StrCat("--insecure: any client that can reach ",
                     address().ToString(),
                     " can train, read and stop this run"));
  }
}

void Doors::Shutdown() {
  if (admin_ != nullptr) admin_->Shutdown(kCallGrace);
  if (transport_ != nullptr) transport_->Shutdown(kCallGrace);
}

}  // namespace cohort
