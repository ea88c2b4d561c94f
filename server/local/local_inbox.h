#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/file_descriptor.h"
#include "common/mutex.h"
#include "common/periodic_task.h"
#include "server/local/local_peer.h"

namespace cohort {

// Answers the messages of one worker that come through its MessagePipe.
class LocalService {
 public:
  virtual ~LocalService() = default;

  // Called by one thread at a time, in the order of the messages. Must not
  // block.
  virtual void OnMessage(std::string message) = 0;
  // The worker's memory contains no messages: it has damaged it. No further
  // message is read.
  virtual void OnDamage(const absl::Status& damage) = 0;
  // The worker is gone. May be called by any thread, also during OnMessage.
  virtual void OnGone() = 0;
};

// Makes an eventfd readable.
void Ring(int bell);

// Reads the messages of all workers of this host. Between a message and its
// handling lies one wake-up of a thread, which does nothing else.
//
// Thread safety: safe. Has a separate thread.
class LocalInbox {
 public:
  // Errors: Unavailable with the reason of the system.
  static absl::StatusOr<std::unique_ptr<LocalInbox>> Open();
  ~LocalInbox();

  // Passes the worker's messages to `service` until Remove.
  void Add(const std::shared_ptr<LocalPeer>& peer,
           std::shared_ptr<LocalService> service) ABSL_LOCKS_EXCLUDED(mu_);
  // Ignored if the peer is not there any more.
  void Remove(const LocalPeer& peer) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Entry {
    std::shared_ptr<LocalPeer> peer;
    std::shared_ptr<LocalService> service;
  };

  LocalInbox(FileDescriptor poll, FileDescriptor wake);

  // Waits for bells, and reads the messages that they announce.
  void Serve();
  // Reads the messages of the peer with this number.
  void Read(uint64_t number) ABSL_LOCKS_EXCLUDED(mu_);

  // Fixed after construction.
  const FileDescriptor poll_;
  const FileDescriptor wake_;

  std::atomic<bool> stopping_ = false;

  Mutex mu_;
  // Numbers are not used twice, so that a late event meets no other peer. 0 is
  // wake_.
  uint64_t next_number_ ABSL_GUARDED_BY(mu_) = 1;
  std::map<uint64_t, Entry> entries_ ABSL_GUARDED_BY(mu_);

  // Last: its thread uses everything above.
  std::unique_ptr<PeriodicTask> task_;
};

}  // namespace cohort
