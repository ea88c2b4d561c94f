#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cohort/v1/admin.pb.h"

namespace cohort {

// An Admin service on a free port of this machine that answers as a test says.
// Hooks run on gRPC's threads, one call at a time.
class FakeAdmin {
 public:
  FakeAdmin();
  ~FakeAdmin();

  const std::string& address() const { return address_; }
  // Stops listening; the address stays known.
  void Shutdown();

  // The answers to questions, unless their hooks are replaced.
  v1::Status status;
  v1::GetPolicyReply policy;

  std::function<absl::StatusOr<v1::Status>()> on_status;
  std::function<absl::StatusOr<v1::GetPolicyReply>()> on_get;
  std::function<absl::StatusOr<v1::SetPolicyReply>(const v1::SetPolicyRequest&)>
      on_set;
  std::function<absl::StatusOr<v1::EvictReply>(const v1::EvictRequest&)>
      on_evict;
  std::function<absl::StatusOr<v1::DrainReply>(const v1::DrainRequest&)>
      on_drain;
  std::function<absl::StatusOr<v1::CheckpointReply>()> on_checkpoint;
  std::function<absl::StatusOr<v1::ExportReply>()> on_export;
  std::function<absl::StatusOr<v1::CollectStatisticsReply>()> on_collect;
  std::function<absl::StatusOr<v1::SetLogLevelReply>(
      const v1::SetLogLevelRequest&)>
      on_log_level;

 private:
  struct Connection;

  std::string address_;
  std::unique_ptr<Connection> connection_;
};

// The results of a run of cohortctl.
struct CtlResult {
  int code = 0;
  std::string out;
  std::string err;
};

// Runs cohortctl in this process. Time passes only while it pauses.
class CtlHarness {
 public:
  // `arguments` are separated by blanks; --server is added.
  CtlResult Run(const std::string& arguments);
  // Like Run, without a server's address.
  CtlResult RunPlain(const std::string& arguments);

  absl::Duration paused() const { return now_; }
  // Time passes while a hook answers.
  void Pass(absl::Duration time) { now_ += time; }

  FakeAdmin server;
  // When Ctrl-C comes.
  absl::Duration interrupt_at = absl::InfiniteDuration();
  bool terminal = false;
  bool color = false;
  std::vector<std::string> environment;
  // Keys that are typed, one entry at each wait for them; then none. Without
  // entries there is no keyboard.
  std::deque<std::string> typed;

 private:
  absl::Duration now_;
};

// A reply with nothing but a version.
template <typename Reply>
Reply AtVersion(int64_t version) {
  Reply reply;
  reply.set_version(version);
  return reply;
}

// A run in its second epoch of four, with a worker that is away.
v1::Status ExampleStatus();
// The run shared with a data shard that has been gone for 12 s.
v1::Status StatusWithoutShard();
// The initial policy of ExampleStatus: synchronous.
v1::GetPolicyReply ExamplePolicy();
// After a change to async and local normalisation at version 1234.
v1::GetPolicyReply ChangedPolicy();
// The policy while that change is pending.
v1::GetPolicyReply PendingPolicy();

}  // namespace cohort
