#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/element_type.h"
#include "common/ids.h"
#include "common/model_layout.h"
#include "common/moments.h"
#include "common/push.h"
#include "server/core/settings/settings.h"

// Arguments and answers of the coordinator.
namespace cohort {

struct JoinRequest {
  std::optional<Rank> rank;
  // The only rank that the client may hold; absent: any.
  std::optional<Rank> permitted_rank;
  // Run and incarnation are empty for a fresh process.
  std::string run_id;
  Incarnation incarnation;
  int64_t batch_size = 0;
  // 0: not given.
  int64_t batch_size_max = 0;
  std::string fingerprint;
  std::string description;
  std::string build;
};

// One partition's gradient of a push, as the shard describes it that has
// received it.
struct GradientArrival {
  int32_t partition = 0;
  ElementType type = ElementType::kFloat32;
  int64_t bytes = 0;
  // ByteRope::SampledChecksum of it, to compare repetitions.
  uint64_t sampled_checksum = 0;
  // Positions in Partition::slices that the rank has no gradient for.
  std::vector<int32_t> absent_slices;
  // The shard's name for it.
  int64_t ticket = 0;
};

// A gradient that waits at its shard for command Take or Refuse.
struct RemoteGradient {
  Sender sender;
  PushKey key;
  GradientArrival gradient;
};

// One rank's part of a rendezvous.
struct MomentsMessage {
  ReduceKey key;
  Moments moments;
  // See Contribution.
  std::vector<int64_t> extents;
};

// The answer to a gradient.
enum class Admission {
  // Command Take is for its shard.
  kTaken,
  // There is no room: the core is asked again after effect ResumeGradients.
  kPaused,
};

// A change of settings that was asked for.
struct ChangeRequest {
  // Empty: whatever run this is.
  std::string run_id;
  SettingValues values;
  // Checks and answers, changes nothing.
  bool dry_run = false;
  ChangeNote note;
};

// Names a change that was accepted, to find out what became of it.
struct AwaitedChange {
  // As in the answer.
  int64_t policy_epoch = 0;
  // Those of its values that take effect together; never empty.
  SettingValues values;

  friend bool operator==(const AwaitedChange&, const AwaitedChange&) = default;
};

struct ChangeAnswer {
  // In force once the change is.
  int64_t policy_epoch = 0;
  Version version;
  // False: it is in force, or nothing differs from what was.
  bool pending = false;
  std::string text;
  // For OutcomeOf; without values if nothing has changed, or will.
  AwaitedChange awaited;
};

// A collection of precise statistics that is in progress.
struct CollectionAnswer {
  // The version whose weights the batches run over.
  Version version;
  int64_t batches = 0;
};

}  // namespace cohort
