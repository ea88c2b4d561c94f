// The ports of gRPC: one for workers, and one of its own for Admin if there is
// --admin_listen.
#include <grpcpp/impl/service_type.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/listen_address.h"
#include "common/log/log.h"
#include "common/ops/process_collector.h"
#include "common/status_macros.h"
#include "common/wire/security.h"
#include "server/main/server.h"
#include "server/rpc/services.h"

namespace cohort {
namespace {

// For people and scripts. Files for workers must remain.
constexpr int64_t kAdminConnectionsMax = 256;

// `admin_address` is empty if this port serves Admin too; then gRPC's own
// answer will do.
std::function<std::string(absl::string_view)> UnservedText(
    const std::string& admin_address) {
  if (admin_address.empty()) return nullptr;
  return [admin_address](absl::string_view method) -> std::string {
    if (!absl::StartsWith(method, "/cohort.v1.Admin/")) return "unknown method";
    return absl::StrCat(
        "this port serves workers only; cohortctl is served at ", admin_address,
        " (--admin_listen)");
  };
}

}  // namespace

absl::Status Server::Listen() {
  Transport::Services services;
  COHORT_RETURN_IF_ERROR(OpenLocalDoor());
  services.push_back(MakeMembershipService(*run_, local_.get()));
  services.push_back(MakeParametersService(*run_, local_.get()));
  services.push_back(MakeMomentsService(*run_));
  Transport::Services admin;
  (options_.admin_listen.empty() ? services : admin)
      .push_back(MakeAdminService(
          *run_,
          {.checkpoint = [this] { return CheckpointNow(); },
           .export_model = [this] { return ExportNow(); },
           .keeps_checkpoints = files_->keeps_checkpoints(),
           .checkpoint_problem = [this] { return files_->figures().problem; },
           .on_status = [this] { watchers_.Asked("status"); },
           .on_drained =
               [this](const std::string& reason) {
                 MutexLock lock(mu_);
                 drain_asked_for_ = reason;
               },
           .audit = security_->audit(),
           .ops_address = [this] { return ops_address(); },
           .certificate_end = [this] { return security_->not_after(); }}));
  COHORT_RETURN_IF_ERROR(ListenForAdmin(std::move(admin)));
  absl::StatusOr<std::unique_ptr<Transport>> transport = Transport::Start(
      {.listen = options_.listen,
       .workers = options_.coordinator.workers,
       .inflight_bytes_max = options_.coordinator.inflight_bytes_max,
       .security = security_->security(),
       .access = security_->access(),
       .connections_per_address = options_.connections_per_address,
       .unserved =
           UnservedText(admin_ == nullptr ? "" : admin_->address().ToString())},
      std::move(services), grpc_metrics_, clock_);
  if (!transport.ok()) return transport.status();
  transport_ = *std::move(transport);
  const ListenAddress& address = transport_->address();
  port_ = address.port;
  address_ = address.ToString();
  if (security_->encrypted()) {
    Log(LogLevel::kInfo,
        absl::StrCat("connections are encrypted; this server is ",
                     security_->security()->identity()->Uri(),
                     ", its certificate is valid until ",
                     absl::FormatTime(security_->not_after())));
  } else if (!address.loopback()) {
    Log(LogLevel::kWarning,
        absl::StrCat("--insecure: any client that can reach ", address_,
                     " can train, read and stop this run"));
  }
  return absl::OkStatus();
}

absl::Status Server::OpenLocalDoor() {
  if (local_weights_ == nullptr) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<LocalDoor>> door = LocalDoor::Open(
      {.directory = options_.local_dir,
       .weights = local_weights_,
       .needs = [this]() -> std::optional<LocalNeeds> {
         const SharedModel model = run_->partitions().model();
         if (model == nullptr) return std::nullopt;
         return LocalNeeds{.partitions = model->partitions,
                           .message_bytes = LocalMessageBytes(model->layout)};
       },
       .serve =
           [this](Rank rank, Incarnation incarnation,
                  const std::shared_ptr<LocalPeer>& peer) {
             return MakeLocalReduce(*run_, rank, incarnation, peer);
           },
       .arena_bytes_max = MemoryLimitBytes() / 2},
      clock_);
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

absl::Status Server::ListenForAdmin(Transport::Services services) {
  if (services.empty()) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<Transport>> transport =
      Transport::Start({.flag = "--admin_listen",
                        .listen = options_.admin_listen,
                        .security = security_->security(),
                        .access = security_->access(),
                        .connections_max = kAdminConnectionsMax},
                       std::move(services), grpc_metrics_, clock_);
  if (!transport.ok()) return transport.status();
  admin_ = *std::move(transport);
  if (!security_->encrypted() && !admin_->address().loopback()) {
    Log(LogLevel::kWarning,
        absl::StrCat("--insecure: any client that can reach ",
                     admin_->address().ToString(),
                     " can read, change and stop this run"));
  }
  return absl::OkStatus();
}

}  // namespace cohort
