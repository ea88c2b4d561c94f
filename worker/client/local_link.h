#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/byte_rope.h"
#include "common/clock.h"
#include "common/file_descriptor.h"
#include "common/float_buffer.h"
#include "common/local/arena.h"
#include "common/local/message_pipe.h"
#include "common/local/packet_socket.h"
#include "common/local/release_counts.h"
#include "common/local/shared_memory.h"
#include "common/model_layout.h"
#include "common/mutex.h"

namespace cohort {

// The memory that this worker shares with a server on its host: an arena for
// its gradients, the weights of the server, and a pipe for messages.
//
// The connection lives as long as this object. The server takes its end for the
// promise that nothing of it is read any more.
//
// Thread safety: one thread may call Write, another one Weights, and a third
// one the methods for messages.
class LocalLink {
 public:
  // `token` is the one of the newest join. `partitions` must outlive the link.
  // Errors: Unavailable: there is no such socket here, or no answer;
  //   PermissionDenied: the server refuses this process; InvalidArgument: what
  //   it passes cannot be used.
  static absl::StatusOr<std::unique_ptr<LocalLink>> Connect(
      const std::string& socket, const std::string& token,
      const std::vector<Partition>& partitions);

  // Copies the gradient of a partition into the arena, once the server no
  // longer needs the one before. While it waits, `check` is called repeatedly;
  // its error ends the wait. `gradient` must have the partition's size.
  // Errors: those of `check`; DeadlineExceeded after `patience`.
  absl::Status Write(int32_t partition, const ByteRope& gradient,
                     const Clock& clock, absl::Duration patience,
                     absl::FunctionRef<absl::Status()> check);

  // The server does not know of the gradient that was written last for this
  // partition, and never will.
  void TakeBack(int32_t partition) {
    --written_[static_cast<size_t>(partition)];
  }

  // Weights of the server. They are not written to before this worker opens its
  // next push.
  // Errors: DataLoss: the place is not in a file that the server has passed.
  absl::StatusOr<ByteRope> Weights(const SharedPlace& place, int64_t elements)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Sends a message. While the server has no room for it, `check` is called
  // repeatedly. Errors: those of `check`; DataLoss: the server's memory
  // is damaged.
  absl::Status SendMessage(absl::string_view message,
                           absl::FunctionRef<absl::Status()> check);
  // The server's next message; absent if there is none. Errors: DataLoss.
  absl::StatusOr<std::optional<std::string>> ReceiveMessage() {
    return mail_.pipe.Receive();
  }
  // Waits for a message, at most for `timeout`; may return early.
  void WaitForMessage(absl::Duration timeout) const {
    mail_.pipe.Wait(timeout);
  }

 private:
  struct MailMemory {
    SharedMemory requests;
    SharedMemory replies;
    FileDescriptor bell;
    MessagePipe pipe;
  };
  using Files = std::vector<std::shared_ptr<const SharedMemory>>;

  LocalLink(PacketSocket socket, ArenaLayout layout, SharedMemory arena,
            ReleaseCounts releases, MailMemory mail);

  // Takes the files that the server has passed since.
  absl::Status TakeFilesLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Fixed after construction.
  const ArenaLayout layout_;
  const ReleaseCounts releases_;

  // Used by Write only.
  SharedMemory arena_;
  // By partition: the gradients written so far.
  std::vector<uint32_t> written_;

  // Used by the methods for messages only.
  MailMemory mail_;

  Mutex mu_;
  PacketSocket socket_ ABSL_GUARDED_BY(mu_);
  Files files_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cohort
