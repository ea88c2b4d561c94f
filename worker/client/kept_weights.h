#pragma once

#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "common/byte_rope.h"
#include "common/ids.h"
#include "common/model_layout.h"
#include "worker/client/client.h"

namespace cohort {

// The trainable weights of the version that a client delivered last, so that
// the server need send only what changes them. They take as much memory as the
// model; nothing is kept while the run has no use for it.
//
// Thread safety: none; what is returned may be read by any thread.
class KeptWeights {
 public:
  // Weights of one version: one rope a partition, empty for frozen ones. Null:
  // they are not kept.
  using Shared = std::shared_ptr<const std::vector<ByteRope>>;

  // In another incarnation the server may use the number for another version.
  Shared Find(Version version, Incarnation incarnation) const;

  // Keeps what was pulled if it is the whole of a version.
  void Take(const PulledVersion& pulled, const PullOptions& options,
            Incarnation incarnation);
  // Follows a push that has read what is kept, if anything is: its weights
  // replace them. They stay if the push has changed none, and go if it is not
  // known what they are now.
  void Follow(const PushResult& result, absl::Span<const Partition> partitions,
              Incarnation incarnation);
  void Forget() { weights_.reset(); }

 private:
  Shared weights_;
  Version version_;
  Incarnation incarnation_;
};

}  // namespace cohort
