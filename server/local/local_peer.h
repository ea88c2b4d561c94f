#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/byte_rope.h"
#include "common/element_type.h"
#include "common/file_descriptor.h"
#include "common/float_buffer.h"
#include "common/local/arena.h"
#include "common/local/message_pipe.h"
#include "common/local/packet_socket.h"
#include "common/local/release_counts.h"
#include "common/local/shared_float_files.h"
#include "common/local/shared_memory.h"
#include "common/model_layout.h"
#include "common/mutex.h"
#include "common/push.h"

namespace cohort {

// Sizes of the shared memory that a model needs.
struct LocalNeeds {
  std::vector<Partition> partitions;
  // Bytes of messages that may wait for one worker, or for the server, at a
  // time. A power of two, from 64 to 2^30.
  int64_t message_bytes = 64;
};

// The memory that the server shares with one worker process of its host: an
// arena into which the worker writes its gradients, the files of weights, and a
// pipe for messages.
//
// The server does not trust the worker to wait: one that writes while its
// gradient is folded harms the sum exactly as one that sends a wrong gradient
// does, and nothing else.
//
// Thread safety: safe.
class LocalPeer {
 public:
  // `weights` must not be null.
  // Errors: ResourceExhausted if there is no memory or descriptor.
  static absl::StatusOr<std::shared_ptr<LocalPeer>> Make(
      PacketSocket socket, const LocalNeeds& needs,
      std::shared_ptr<const SharedFloatFiles> weights);

  // Tells the worker about its arena and all files of weights so far.
  // Errors: Unavailable if the worker is gone.
  absl::Status Welcome() ABSL_LOCKS_EXCLUDED(mu_);

  // The connection to the worker. It ends when the process does.
  int fd() const { return socket_.fd(); }

  // The gradient of a partition where the worker wrote it, its elements of this
  // type. The worker writes there again once no rope refers to it.
  // Errors: InvalidArgument: there is no such partition.
  absl::StatusOr<ByteRope> Gradient(
      int32_t partition, ElementType type = ElementType::kFloat32) const;

  // Where the worker can read `weights`, which answer the push `key`. They stay
  // until the worker opens another push. Absent if it cannot read them.
  std::optional<SharedPlace> Share(const PushKey& key,
                                   const SharedFloats& weights)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The worker has opened the push `key`: it no longer reads the weights that
  // answered others.
  void Opened(const PushKey& key) ABSL_LOCKS_EXCLUDED(mu_);
  // The worker reads nothing more.
  void Forget() ABSL_LOCKS_EXCLUDED(mu_);

  // Sends a message and wakes the worker. Errors: those of MessagePipe::Send.
  absl::Status Send(absl::string_view message) ABSL_LOCKS_EXCLUDED(send_mu_);
  // The worker's next message; absent if there is none. For one thread.
  // Errors: those of MessagePipe::Receive.
  absl::StatusOr<std::optional<std::string>> Receive() {
    return mail_->pipe.Receive();
  }
  // An eventfd that the worker writes to after each message.
  int bell() const { return mail_->bell.get(); }

 private:
  // Outlives the peer as long as there are ropes.
  struct Arena {
    SharedMemory memory;
    ReleaseCounts releases;
  };
  struct Lent {
    PushKey key;
    SharedFloats weights;
  };
  struct MailMemory {
    SharedMemory requests;
    SharedMemory replies;
    FileDescriptor bell;
    MessagePipe pipe;
  };

  LocalPeer(PacketSocket socket, ArenaLayout layout,
            std::vector<int64_t> elements, std::shared_ptr<Arena> arena,
            std::unique_ptr<MailMemory> mail,
            std::shared_ptr<const SharedFloatFiles> weights);

  static absl::StatusOr<std::unique_ptr<MailMemory>> MakeMail(int64_t capacity);

  // Sends the worker all files that it does not know yet.
  absl::Status AnnounceLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Fixed after construction.
  const ArenaLayout layout_;
  // Elements of each partition.
  const std::vector<int64_t> elements_;
  const std::shared_ptr<Arena> arena_;
  const std::shared_ptr<const SharedFloatFiles> weights_;

  // The two ends of the pipe are used independently: see MessagePipe.
  const std::unique_ptr<MailMemory> mail_;
  Mutex send_mu_;

  Mutex mu_;
  // Its descriptor is fixed; it is sent to under the lock.
  PacketSocket socket_;
  // The number of files that the worker knows.
  int32_t announced_ ABSL_GUARDED_BY(mu_) = 0;
  // False once the worker cannot receive further files, or has gone.
  bool reachable_ ABSL_GUARDED_BY(mu_) = true;
  std::vector<Lent> lent_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cohort
