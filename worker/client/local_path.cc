#include "worker/client/local_path.h"

#include <unistd.h>

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/listen_address.h"
#include "common/local/boot_id.h"
#include "common/ops/client_connection.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

// A server of this host is slow to accept only if it is stopped.
constexpr absl::Duration kConnectMax = absl::Seconds(5);

constexpr absl::string_view kOverUnix =
    "gradients and weights go over a Unix socket";
constexpr absl::string_view kOverTcp = "gradients and weights go over TCP";

absl::Status CheckHost(const v1::LocalOffer& offer) {
  if (offer.boot_id() == BootId()) return absl::OkStatus();
  return absl::FailedPreconditionError("the server is on another host");
}

absl::StatusOr<std::unique_ptr<LocalLink>> ShareMemory(
    const v1::LocalOffer& offer, const std::vector<Partition>& partitions) {
  if (offer.socket().empty()) {
    return absl::FailedPreconditionError(
        "the server offers no shared memory; see its --local");
  }
  const absl::Status here = CheckHost(offer);
  if (!here.ok()) return here;
  return LocalLink::Connect(offer.socket(), offer.token(), partitions);
}

// Checks that a worker here reaches the server's Unix socket.
absl::Status ReachSocket(const std::string& server,
                         const v1::LocalOffer& offer) {
  if (IsUnixAddress(server)) return absl::OkStatus();
  if (offer.address().empty()) {
    return absl::FailedPreconditionError(
        "the server offers no Unix socket; see its --local");
  }
  const absl::Status here = CheckHost(offer);
  if (!here.ok()) return here;
  if (!IsUnixAddress(offer.address())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the server offers '", offer.address(), "', want a Unix socket"));
  }
  ClientConnection connection("local", offer.address(),
                              SteadyClock().Now() + kConnectMax);
  COHORT_RETURN_IF_ERROR(connection.Open());
  // For a path the system has checked the user. For an abstract name the server
  // does, but only after the connection.
  if (!absl::StartsWith(offer.address(), "unix-abstract:")) {
    return absl::OkStatus();
  }
  COHORT_ASSIGN_OR_RETURN(const uint32_t user, connection.PeerUser());
  if (user == geteuid() || geteuid() == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("the server is a process of user ", user,
                   ", want one of user ", geteuid(), ", as this worker is"));
}

absl::Status Unusable(absl::string_view mode, const absl::Status& why) {
  return absl::FailedPreconditionError(absl::StrCat(
      "--local=", mode, ": ", why.message(),
      "; start worker and server on one host and as one user, in containers "
      "with one network namespace or with the server's --local_dir, or use "
      "--local=auto"));
}

}  // namespace

absl::StatusOr<LocalPath> ChooseLocalPath(
    LocalMode mode, const std::string& server, const v1::LocalOffer& offer,
    const std::vector<Partition>& partitions) {
  const bool unix_server = IsUnixAddress(server);
  if (mode == LocalMode::kTcp) {
    return LocalPath{.transport = unix_server ? "unix" : "tcp",
                     .text = absl::StrCat(unix_server ? kOverUnix : kOverTcp,
                                          ": --local=tcp")};
  }
  absl::Status no_memory;
  if (mode != LocalMode::kUnix) {
    absl::StatusOr<std::unique_ptr<LocalLink>> memory =
        ShareMemory(offer, partitions);
    if (memory.ok()) {
      return LocalPath{
          .memory = *std::move(memory),
          .transport = "shm",
          .text = "gradients and weights go through shared memory"};
    }
    no_memory = memory.status();
    if (mode == LocalMode::kSharedMemory) return Unusable("shm", no_memory);
  }
  const absl::Status no_socket = ReachSocket(server, offer);
  if (no_socket.ok()) {
    return LocalPath{
        .address = unix_server ? server : offer.address(),
        .transport = "unix",
        .text = no_memory.ok() ? std::string(kOverUnix)
                               : absl::StrCat(kOverUnix, ": no shared memory: ",
                                              no_memory.message())};
  }
  if (mode == LocalMode::kUnix) return Unusable("unix", no_socket);
  LocalPath path{.transport = "tcp",
                 .text = absl::StrCat(kOverTcp, ": ", no_memory.message())};
  if (no_socket.message() != no_memory.message()) {
    absl::StrAppend(&path.text, "; no Unix socket: ", no_socket.message());
  }
  return path;
}

absl::StatusOr<LocalPath> PathToShards(LocalMode mode) {
  constexpr absl::string_view kShards =
      "the run has several shards, and data shards are reached over TCP only";
  if (mode == LocalMode::kSharedMemory || mode == LocalMode::kUnix) {
    return absl::FailedPreconditionError(
        absl::StrCat("--local: got ", mode == LocalMode::kUnix ? "unix" : "shm",
                     ", want auto or tcp: ", kShards));
  }
  return LocalPath{.transport = "tcp",
                   .text = absl::StrCat(kOverTcp, ": ", kShards)};
}

}  // namespace cohort
