#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/byte_rope.h"
#include "common/element_type.h"
#include "common/ids.h"
#include "common/model_layout.h"
#include "common/moments.h"
#include "server/core/settings.h"

// Arguments and answers of the coordinator.
namespace cohort {

struct JoinRequest {
  std::optional<Rank> rank;
  // The only rank that the client may hold; absent: any.
  std::optional<Rank> permitted_rank;
  // Both empty for a fresh process.
  std::string run_id;
  Incarnation incarnation;
  int64_t batch_size = 0;
  std::string fingerprint;
  std::string description;
  std::string build;
};

struct GradientMessage {
  int32_t partition = 0;
  // The partition's elements. Empty if another shard has received them.
  ByteRope gradient;
  ElementType type = ElementType::kFloat32;
  // ByteRope::SampledChecksum of it, to compare repetitions.
  uint64_t sampled_checksum = 0;
  std::vector<int32_t> absent_slices;
  // Names the gradient at the shard that has received it, and its size. 0: the
  // gradient is here.
  int64_t ticket = 0;
  int64_t remote_bytes = 0;

  int64_t size_bytes() const {
    return ticket == 0 ? gradient.size_bytes() : remote_bytes;
  }
};

// One rank's part of a rendezvous.
struct MomentsMessage {
  ReduceKey key;
  Moments moments;
  // See Contribution.
  std::vector<int64_t> extents;
};

// The outcome of handing over a gradient.
enum class Admission {
  // It is the core's.
  kTaken,
  // There is no room: the caller keeps it, reads nothing more of this stream,
  // and hands it over again after effect ResumeGradients.
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

struct ChangeAnswer {
  // In force once the change is.
  int64_t policy_epoch = 0;
  Version version;
  // False: it is in force, or nothing differs from what was.
  bool pending = false;
  std::string text;
};

// A collection of precise statistics that is under way.
struct CollectionAnswer {
  // The version whose weights the batches run over.
  Version version;
  int64_t batches = 0;
};

}  // namespace cohort
