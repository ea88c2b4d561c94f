#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "common/assignment.h"
#include "common/clock.h"
#include "server/core/coordinator.h"
#include "tests/fuzz/target.h"
#include "tests/sim/checker.h"
#include "tests/sim/core_host.h"
#include "tests/sim/scenario.h"

namespace cohort::fuzz {

// One server core and its data shard, driven by the bytes of an input: each
// byte is an event, and further bytes are its arguments. Events are what any
// client could cause, in any order: sessions, registrations, pushes and
// rendezvous that follow the protocol (one message at a time, so that ranks
// interleave), and messages that break it, from old incarnations, twice, out of
// order, with numbers that fit nothing. Folds end in any order, time passes,
// operators change settings, and the server restarts from a checkpoint.
//
// After each event the simulator's checker compares what the core did with
// what it may do. Refusals must have documented codes.
class CoreDriver : private sim::CoreHost<CoreDriver> {
 public:
  explicit CoreDriver(Reader& reader);

  // Runs events until the input or the run ends.
  void Run();

 private:
  friend sim::CoreHost<CoreDriver>;

  // A client that holds a rank, or once did.
  struct Client {
    SessionId session;
    Sender sender;
    bool connected = false;
    bool registered = false;
    bool asked_for_values = false;
    std::optional<Assignment> work;
    // Messages of `work` that were sent.
    size_t sent = 0;
    Version read;
  };

  void Event(uint8_t kind);
  // ---- sessions
  void Join();
  void EndSession();
  void Register(Client& client);
  // ---- the protocol, one message further
  void Proceed(Client& client);
  // True once everything of the step was sent.
  void ProceedStep(Client& client, const Assignment& work);
  void Report(const Sender& sender, Sequence sequence, int64_t samples);
  void ReportMoments(const Sender& sender, Sequence sequence, int64_t samples);
  void Contribute(const Sender& sender, const ReduceKey& key, int64_t count);
  void Open(const Sender& sender, const PushKey& key,
            const PushOpening& opening);
  void Gradient(const Sender& sender, const PushKey& key, int32_t partition);
  void Close(const Sender& sender, const PushKey& key, bool local);
  // ---- the protocol broken
  void Intrude();
  // ---- pools, time and people
  void EndFold();
  void PassTime();
  void Operate();
  void Restart();

  void On(const effect::Joined& e);
  void On(const effect::EndSession& e);
  void On(const effect::Notify& e);
  void On(const effect::RegisterAnswered& e);
  void On(const effect::SendVerdict& e);
  template <typename Other>
  void On(const Other&) {}
  // There are none.
  void SendTo(int32_t /*shard*/, const ShardCommand& /*command*/) {}
  void InstallAt(const Installation& /*installation*/) {}
  void OnCheckpoint(const effect::WriteCheckpoint& /*e*/,
                    const SharedVersion& /*pin*/) {}
  void OnTaken(int64_t /*ticket*/) {}
  void OnWeights(const command::SendWeights& /*to*/,
                 const WeightsMessage& /*message*/) {}
  void Begin(const FoldJob& job) { folds_.push_back(job); }
  void Begin(const MomentsFold& job) { moments_.push_back(job); }
  void Begin(const StatisticsUpdate& job) { updates_.push_back(job); }
  void Take(Client& client, const Assignment& assignment);

  Client* FindSession(SessionId session);
  Client& Chosen();
  // The run may end early only if an event of this driver ends it.
  void CheckFailure();
  bool over() const { return checker_.ended().has_value(); }
  const sim::RunSpec& run() const { return scenario_.run; }

  Reader& reader_;
  const sim::Scenario scenario_;
  // CoreHost refers to it.
  sim::Checker run_checker_;
  Instant now_ = absl::Seconds(1000);
  int32_t server_incarnation_ = 0;
  int64_t next_session_ = 1;
  // In the order in which they came; the first is a stranger that no server
  // has let in.
  std::deque<Client> clients_;
  // The joins that were not answered yet, by session.
  std::map<SessionId, int64_t> joins_;
  // The work that each push belongs to.
  std::map<std::pair<Rank, PushKey>, Assignment> told_;
  std::deque<FoldJob> folds_;
  std::deque<MomentsFold> moments_;
  std::deque<StatisticsUpdate> updates_;
  // An operator, or a client whose messages fit nothing, may end the run.
  bool may_end_early_ = false;
};

}  // namespace cohort::fuzz
