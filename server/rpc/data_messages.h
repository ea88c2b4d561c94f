#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/v1/data_shard.pb.h"
#include "common/float_buffer.h"
#include "server/core/events/requests.h"
#include "server/core/model/commands.h"
#include "server/partitions/partitions.h"

// Converts the messages between shards to and from the generated types. As in
// common/wire/convert.h, FromProto checks what it can without knowing the run,
// and its errors are InvalidArgument.
namespace cohort {

v1::ShardCommand EncodeCommand(const ShardCommand& command);
absl::StatusOr<ShardCommand> FromProto(const v1::ShardCommand& message);

// Passes the messages of a model, with its weights, to `send`, in order.
void EncodeInstallation(const Installation& install,
                        absl::FunctionRef<void(v1::ShardCommand&)> send);

// Puts them together again. Thread safety: none.
class InstallationReader {
 public:
  // `place` is the shard's, as attached.
  explicit InstallationReader(const ShardPlace& place) : place_(place) {}

  static bool Reads(const v1::ShardCommand& message) {
    return message.has_install() || message.has_partition() ||
           message.has_install_end();
  }
  // Absent while more messages are to come.
  absl::StatusOr<std::optional<Installation>> Take(
      const v1::ShardCommand& message);

 private:
  absl::Status Begin(const v1::InstallModel& message);
  absl::Status Add(const v1::ShardPartition& message);

  const ShardPlace place_;
  // The model that is being received.
  std::optional<Installation> install_;
  std::shared_ptr<ModelSnapshot> snapshot_;
};

void ToProto(const RemoteGradient& gradient, v1::RemoteGradient* proto);
absl::StatusOr<RemoteGradient> FromProto(const v1::RemoteGradient& proto);

void ToProto(const FoldReport& report, v1::ShardFold* proto);
absl::StatusOr<FoldReport> FromProto(const v1::ShardFold& proto);

// Passes each buffer that `snapshot` has of a partition to `send`.
void EncodePartition(const ModelSnapshot& snapshot, size_t partition,
                     absl::FunctionRef<void(v1::ShardPartition&)> send);
// Adds one buffer to `snapshot`, whose lists have an entry a partition.
// Errors also: DataLoss: its checksum.
absl::Status AddPartition(const v1::ShardPartition& message,
                          const std::vector<Partition>& partitions,
                          ModelSnapshot& snapshot);

}  // namespace cohort
