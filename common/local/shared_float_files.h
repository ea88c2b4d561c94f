#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/float_buffer.h"
#include "common/local/shared_memory.h"
#include "common/mutex.h"

namespace cohort {

// Memory for buffers that other processes of this host may read: a list of
// files in memory, numbered from 0, which grows and never shrinks.
//
// Thread safety: safe.
class SharedFloatFiles final : public FloatStorage {
 public:
  // The size of a file, unless one buffer needs more.
  static constexpr int64_t kFileBytes = int64_t{64} << 20;

  explicit SharedFloatFiles(int64_t file_bytes = kFileBytes)
      : file_bytes_(file_bytes) {}

  // Absent if the system has no memory for a further file.
  std::optional<Piece> Allocate(int64_t elements) override;

  // The files so far, without the first `from`.
  std::vector<std::shared_ptr<const SharedMemory>> FilesFrom(
      int32_t from) const;

 private:
  const int64_t file_bytes_;

  mutable Mutex mu_;
  std::vector<std::shared_ptr<SharedMemory>> files_ ABSL_GUARDED_BY(mu_);
  // The first byte of the last file that is not handed out.
  int64_t used_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace cohort
