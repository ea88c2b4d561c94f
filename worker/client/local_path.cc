#include "worker/client/local_path.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/listen_address.h"
#include "common/local/boot_id.h"

namespace cohort {
namespace {

constexpr absl::string_view kOverUnix =
    "gradients and weights go over a Unix socket";
constexpr absl::string_view kOverTcp = "gradients and weights go over TCP";

absl::StatusOr<std::unique_ptr<LocalLink>> ShareMemory(
    const v1::LocalOffer& offer, const std::vector<Partition>& partitions) {
  if (offer.socket().empty()) {
    return absl::FailedPreconditionError(
        "the server offers no shared memory; see its --local");
  }
  // The kernel's boot identifier tells hosts apart whatever their names are.
  if (offer.boot_id() != BootId()) {
    return absl::FailedPreconditionError("the server is on another host");
  }
  return LocalLink::Connect(offer.socket(), offer.token(), partitions);
}

}  // namespace

absl::StatusOr<LocalPath> ChooseLocalPath(
    LocalMode mode, const std::string& server, const v1::LocalOffer& offer,
    const std::vector<Partition>& partitions) {
  LocalPath path{.transport = "tcp", .text = std::string(kOverTcp)};
  if (IsUnixAddress(server)) {
    path.transport = "unix";
    path.text = std::string(kOverUnix);
  }
  if (mode == LocalMode::kTcp) {
    absl::StrAppend(&path.text, ": --local=tcp");
    return path;
  }
  absl::StatusOr<std::unique_ptr<LocalLink>> memory =
      ShareMemory(offer, partitions);
  if (memory.ok()) {
    return LocalPath{.memory = *std::move(memory),
                     .transport = "shm",
                     .text = "gradients and weights go through shared memory"};
  }
  if (mode == LocalMode::kSharedMemory) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--local=shm: ", memory.status().message(),
        "; start worker and server on one host and as one user, in containers "
        "with one network namespace or with the server's --local_dir, or use "
        "--local=auto"));
  }
  // Not an error: the results are the same, only slower. The text says why.
  absl::StrAppend(&path.text,
                  ": no shared memory: ", memory.status().message());
  return path;
}

absl::StatusOr<LocalPath> PathToShards(LocalMode mode) {
  constexpr absl::string_view kShards =
      "the run has several shards, and data shards are reached over TCP only";
  if (mode == LocalMode::kSharedMemory) {
    return absl::FailedPreconditionError(
        absl::StrCat("--local: got shm, want auto or tcp: ", kShards));
  }
  return LocalPath{.transport = "tcp",
                   .text = absl::StrCat(kOverTcp, ": ", kShards)};
}

}  // namespace cohort
