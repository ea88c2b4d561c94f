#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/file_descriptor.h"
#include "common/ids.h"
#include "common/local/packet_socket.h"
#include "common/local/shared_float_files.h"
#include "common/mutex.h"
#include "common/periodic_task.h"
#include "server/local/local_inbox.h"
#include "server/local/local_peer.h"

namespace cohort {

struct LocalDoorOptions {
  // The folder for the socket; workers must see it under the same path. Empty:
  // the socket has no path, and workers must be in the same network namespace.
  std::string directory;
  // Where the weights of new versions lie.
  std::shared_ptr<const SharedFloatFiles> weights;
  // Absent as long as no model is registered.
  std::function<std::optional<LocalNeeds>()> needs;
  // Makes the service for the messages of a worker that has connected. May be
  // empty: messages stay unread.
  std::function<std::shared_ptr<LocalService>(Rank, Incarnation,
                                              std::shared_ptr<LocalPeer>)>
      serve;
  // Limit on the arenas of all workers; 0: none.
  int64_t arena_bytes_max = 0;
};

// Lets in workers of the same host: processes of the same user that show the
// one-time token which the server gave them when they joined. So a worker's
// identity here is the one that was checked there.
//
// Thread safety: safe. Has a thread, and one for messages.
class LocalDoor {
 public:
  // The part of the answer to a join that concerns shared memory.
  struct Offer {
    std::string socket;
    std::string token;
  };

  // Errors: Unavailable or InvalidArgument, naming the socket, if it cannot be
  //   made.
  static absl::StatusOr<std::unique_ptr<LocalDoor>> Open(
      LocalDoorOptions options, const Clock& clock);
  ~LocalDoor();

  // Call when this incarnation joins or returns. An earlier incarnation of the
  // rank no longer reads or writes anything.
  Offer Invite(Rank rank, Incarnation incarnation) ABSL_LOCKS_EXCLUDED(mu_);

  // Null if this worker has not connected here.
  std::shared_ptr<LocalPeer> Find(Rank rank, Incarnation incarnation) const
      ABSL_LOCKS_EXCLUDED(mu_);

  const std::string& socket() const { return listener_.name(); }

 private:
  struct Member {
    Incarnation incarnation;
    // Empty once it was used.
    std::string token;
    // Null before the worker has connected.
    std::shared_ptr<LocalPeer> peer;
  };
  // A connection that has not said who it is.
  struct Stranger {
    PacketSocket socket;
    Instant until;
  };

  LocalDoor(LocalDoorOptions options, const Clock& clock,
            PacketListener listener, FileDescriptor wake,
            std::unique_ptr<LocalInbox> inbox);

  // Waits until something happens, and handles it.
  void Serve() ABSL_LOCKS_EXCLUDED(mu_);
  void Accept();
  bool accepting() const { return clock_.Now() >= accept_from_; }
  // Handles the first message of each stranger that has sent one.
  void HearStrangers() ABSL_LOCKS_EXCLUDED(mu_);
  // Errors: the reason for a refusal.
  absl::Status Admit(PacketSocket& socket) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::shared_ptr<LocalPeer>> MakePeer(PacketSocket& socket,
                                                      Rank entering);
  // Takes the invitation with this token.
  std::optional<std::pair<Rank, Incarnation>> TakeInvitation(
      const std::string& token) ABSL_LOCKS_EXCLUDED(mu_);
  // Forgets workers whose process has ended or has closed its connection.
  void ForgetGone() ABSL_LOCKS_EXCLUDED(mu_);
  // Nothing goes to or comes from this worker any more.
  void Forget(LocalPeer& peer);

  // Fixed after construction.
  const LocalDoorOptions options_;
  const Clock& clock_;
  // Ends the thread's wait.
  const FileDescriptor wake_;
  const std::unique_ptr<LocalInbox> inbox_;

  // Used by the thread only.
  PacketListener listener_;
  std::list<Stranger> strangers_;
  // Later than now if the system had no descriptor for a connection.
  Instant accept_from_;
  // The number of workers when the log last said that all share memory.
  size_t logged_workers_ = 0;

  mutable Mutex mu_;
  std::map<Rank, Member> members_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;

  // Last: its thread uses everything above.
  std::unique_ptr<PeriodicTask> task_;
};

}  // namespace cohort
