// Changes of a live run over a real connection, and the records of them.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <map>
#include <string>

#include "common/wire/announced_checksum.h"
#include "tests/fakes/statuses.h"
#include "tests/fakes/temp_dir.h"
#include "tests/rpc/hand_worker.h"
#include "tests/rpc/service_fixture.h"

namespace cohort {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Settings = std::map<std::string, std::string>;

// For what comes before.
constexpr int64_t kLong = 60'000;

class PolicyServiceTest : public ServiceTest {
 protected:
  // Two epochs of one step each, so that training continues after the first.
  void StartTwoSteps() {
    options_ = TinyOptions();
    options_.coordinator.epochs = 2;
    // A stop that takes long must not lose the workers, as a change that waits
    // for their step would take effect then.
    options_.coordinator.reconnect_grace = absl::Minutes(1);
    options_.files.checkpoint_dir = TemporaryFolder("state");
    options_.files.results_dir = TemporaryFolder("results");
    StartWithTwoWorkers(options_);
  }

  void CommitOneStep() {
    TrainOneStep();
    for (ExchangeCall& exchange : exchanges_) AwaitVerdict(exchange);
  }

  void StopAll() {
    server_->Stop();
    exchanges_.clear();
    assignments_.clear();
    workers_.clear();
    server_.reset();
  }

  // A run that was changed after its first step, to be resumed.
  void StopAfterAChange() {
    StartTwoSteps();
    v1::SetPolicyReply reply;
    ExpectOk(Set({{"aggregation", "async"}, {"learning_rate", "0.25"}}, reply));
    CommitOneStep();
    StopAll();
    options_.files.resume = true;
    out_.str("");
  }

  std::unique_ptr<v1::Admin::Stub> Admin() {
    return v1::Admin::NewStub(PlainChannel(server_->address()));
  }

  grpc::Status Send(const v1::SetPolicyRequest& request,
                    v1::SetPolicyReply& reply, int64_t deadline_ms = kLong,
                    bool announces = false) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::milliseconds(deadline_ms));
    if (announces) context.AddMetadata(kChecksumAnnounced, "1");
    return Admin()->SetPolicy(&context, request, &reply);
  }

  grpc::Status Set(const Settings& settings, v1::SetPolicyReply& reply,
                   const std::string& run_id = "", bool dry_run = false) {
    v1::SetPolicyRequest request;
    request.set_run_id(run_id);
    request.set_dry_run(dry_run);
    request.set_author("ana@host");
    request.set_reason("one node is slow");
    request.mutable_settings()->insert(settings.begin(), settings.end());
    return Send(request, reply);
  }

  // The same with a wait, in another thread; returns once it is pending.
  std::future<grpc::Status> SetAndWait(const Settings& settings,
                                       v1::SetPolicyReply& reply,
                                       int64_t wait_ms,
                                       int64_t deadline_ms = kLong) {
    const int pending = Policy().pending_size();
    v1::SetPolicyRequest request;
    request.set_wait_ms(wait_ms);
    request.mutable_settings()->insert(settings.begin(), settings.end());
    auto status = std::async(std::launch::async, [=, this, &reply] {
      return Send(request, reply, deadline_ms);
    });
    while (Policy().pending_size() == pending) {
    }
    return status;
  }

  v1::GetPolicyReply Policy() {
    TimedContext context;
    v1::GetPolicyReply reply;
    const grpc::Status status = Admin()->GetPolicy(&context, {}, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply;
  }

  grpc::Status Evict(int32_t rank, const std::string& run_id = "") {
    TimedContext context;
    v1::EvictRequest request;
    request.set_run_id(run_id);
    request.set_rank(rank);
    request.set_reason("too slow");
    v1::EvictReply reply;
    return Admin()->Evict(&context, request, &reply);
  }

  std::vector<std::string> Lines(const std::string& file) {
    return ReadLines(options_.files.results_dir + "/" + file);
  }

  ServerOptions options_;
};

// One flipped bit of the length of an entry of the settings, found by the fuzz
// target "convert": the entry swallows all that follows, and drops it.
TEST_F(PolicyServiceTest, RequestThatIsDamagedChangesNothing) {
  StartTwoSteps();
  const auto settings = Policy().settings();
  v1::SetPolicyRequest change;
  (*change.mutable_settings())["learning_rate"] = "0.3";
  change.set_dry_run(true);
  // 32 bytes follow the entry, which has 20.
  change.set_author("nineteen characters");
  AddMessageChecksum(&change);
  std::string bytes = change.SerializeAsString();
  ASSERT_EQ(bytes.size(), 2u + 20u + 32u);
  bytes[1] ^= 32;
  ASSERT_TRUE(change.ParseFromString(bytes));
  ASSERT_FALSE(change.has_message_xxh3() || change.dry_run());
  ASSERT_EQ(change.settings().at("learning_rate"), "0.3");
  v1::SetPolicyReply changed;
  EXPECT_EQ(Send(change, changed, kLong, /*announces=*/true).error_code(),
            grpc::DATA_LOSS);
  AddMessageChecksum(&change);
  // One bit of the value: 0.1 in place of 0.3.
  (*change.mutable_settings())["learning_rate"] = "0.1";
  EXPECT_EQ(Send(change, changed).error_code(), grpc::DATA_LOSS);
  EXPECT_EQ(Policy().settings().at("learning_rate"),
            settings.at("learning_rate"));
  v1::EvictRequest evict;
  evict.set_rank(1);
  AddMessageChecksum(&evict);
  evict.set_rank(0);
  v1::EvictReply evicted;
  TimedContext context;
  EXPECT_EQ(Admin()->Evict(&context, evict, &evicted).error_code(),
            grpc::DATA_LOSS);
}

TEST_F(PolicyServiceTest, ChangeWaitsForTheStepInProgressAndIsRecorded) {
  StartTwoSteps();
  v1::SetPolicyReply reply;
  const grpc::Status status =
      Set({{"aggregation", "async"}, {"normalization", "local"}}, reply,
          server_->run_id());
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(reply.pending());
  EXPECT_EQ(reply.policy_epoch(), 2);
  EXPECT_EQ(reply.version(), 0);

  v1::GetPolicyReply before = Policy();
  EXPECT_EQ(before.run_id(), server_->run_id());
  EXPECT_EQ(before.policy_epoch(), 1);
  EXPECT_THAT(before.text(), HasSubstr("sync, global"));
  EXPECT_EQ(before.pending().at("aggregation"), "async");
  EXPECT_THAT(before.pending_reason(), HasSubstr("waiting for workers 0, 1"));
  ASSERT_EQ(before.history_size(), 1);
  EXPECT_EQ(before.history(0).settings().at("workers"), "2");

  CommitOneStep();
  const v1::GetPolicyReply after = Policy();
  EXPECT_EQ(after.policy_epoch(), 2);
  EXPECT_THAT(after.text(), HasSubstr("async, local"));
  EXPECT_TRUE(after.pending().empty());
  ASSERT_EQ(after.history_size(), 2);
  EXPECT_EQ(after.history(1).version(), 1);
  EXPECT_EQ(after.history(1).samples(), 4);
  EXPECT_EQ(after.history(1).settings().at("normalization"), "local");
  EXPECT_EQ(after.history(1).author(), "ana@host");
  EXPECT_EQ(after.history(1).reason(), "one node is slow");

  StopAll();
  EXPECT_THAT(
      out_.str(),
      HasSubstr("policy sync -> async, local normalisation at step 1\n"));
  const std::vector<std::string> rows = Lines("policy.csv");
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0],
            "policy_epoch,version,samples,seconds,changes,text,run_name");
  EXPECT_THAT(rows[1], HasSubstr("1,0,0,0.000,\""));
  EXPECT_THAT(rows[1], HasSubstr(" aggregation=sync "));
  EXPECT_THAT(rows[2], HasSubstr("2,1,4,"));
  EXPECT_THAT(rows[2],
              HasSubstr(",\"aggregation=async normalization=local\",\""));
  EXPECT_THAT(rows[2], HasSubstr("; by ana@host: one node is slow\""));
  // The first step was made under the first policy.
  const std::vector<std::string> history = Lines("history.csv");
  ASSERT_GE(history.size(), 2u);
  EXPECT_THAT(history[1], HasSubstr("\"sync, global"));
}

TEST_F(PolicyServiceTest, ACallWaitsUntilItsChangeIsInForceOrReplaced) {
  StartTwoSteps();
  v1::SetPolicyReply lost;
  auto replaced = SetAndWait({{"aggregation", "async"}}, lost, kLong);
  v1::SetPolicyReply reply;
  auto in_force = SetAndWait({{"learning_rate", "0.25"}}, reply, kLong);
  // Others do not wait for them.
  EXPECT_EQ(Evict(2).error_code(), grpc::INVALID_ARGUMENT);
  v1::SetPolicyReply other;
  ASSERT_TRUE(Set({{"lease", "4s"}}, other).ok());
  EXPECT_EQ(other.change().settings().at("lease"), "4s");
  ASSERT_TRUE(Set({{"aggregation", "bounded"}}, other).ok());
  EXPECT_THAT(
      replaced.get(),
      EndedWith(grpc::ABORTED, "aggregation is to be bounded, not async"));
  CommitOneStep();
  ASSERT_TRUE(in_force.get().ok());
  EXPECT_FALSE(reply.pending());
  EXPECT_EQ(reply.change().version(), 1);
  EXPECT_EQ(reply.change().settings().at("learning_rate"), "0.25");
}

TEST_F(PolicyServiceTest, AWaitEndsWithItsTimeOrTheServerByName) {
  StartTwoSteps();
  v1::SetPolicyReply late;
  ASSERT_TRUE(SetAndWait({{"aggregation", "async"}}, late, 500).get().ok());
  EXPECT_TRUE(late.pending());
  EXPECT_THAT(late.pending_reason(), HasSubstr("waiting for workers 0, 1"));
  v1::SetPolicyReply reply;
  auto cut = SetAndWait({{"learning_rate", "0.25"}}, reply, kLong, 1500);
  EXPECT_EQ(cut.get().error_code(), grpc::DEADLINE_EXCEEDED);
  EXPECT_EQ(Policy().pending_size(), 2);
  auto stopped = SetAndWait({{"momentum", "0.5"}}, reply, kLong);
  StopAll();
  options_.files.resume = true;
  Start(options_);
  EXPECT_EQ(stopped.get().error_code(), grpc::ABORTED);
  v1::SetPolicyRequest again;
  *again.mutable_awaited() = late.awaited();
  const grpc::Status restarted = Send(again, reply);
  EXPECT_THAT(restarted, EndedWith(grpc::ABORTED, "the server was restarted"));
}

TEST_F(PolicyServiceTest, RefusalsAreExactAndChangeNothing) {
  StartTwoSteps();
  struct Case {
    Settings settings;
    const char* text;
  };
  const Case cases[] = {
      {{{"agregation", "async"}}, "--agregation: no such setting"},
      {{{"aggregation", "sometimes"}}, "want one of sync"},
      {{{"aggregation", "async"}, {"normalization", "global"}},
       "--normalization: got global"},
      {{{"lease", "100ms"}}, "--lease: got 100ms, want at least 2.4s"},
      {{{std::string(65, 'n'), "x"}}, "length of a setting's name: got 65"},
      {{{"freeze", std::string(4097, 'v')}},
       "length of --freeze: got 4097, want at most 4096"}};
  for (const Case& c : cases) {
    v1::SetPolicyReply reply;
    EXPECT_THAT(Set(c.settings, reply),
                EndedWith(grpc::INVALID_ARGUMENT, c.text));
  }
  v1::SetPolicyReply reply;
  EXPECT_EQ(Set({{"aggregation", "async"}}, reply, "another").error_code(),
            grpc::FAILED_PRECONDITION);
  ASSERT_TRUE(Set({{"aggregation", "async"}}, reply, "", true).ok());
  EXPECT_TRUE(reply.pending());
  EXPECT_THAT(reply.text(), HasSubstr("aggregation sync -> async"));

  const v1::GetPolicyReply after = Policy();
  EXPECT_EQ(after.policy_epoch(), 1);
  EXPECT_TRUE(after.pending().empty());
  EXPECT_EQ(after.settings().at("learning_rate"), "0.5");
}

TEST_F(PolicyServiceTest, CheckpointsCannotBeAskedOfAServerWithoutAPlace) {
  Start(TinyOptions());
  v1::SetPolicyReply reply;
  EXPECT_THAT(Set({{"checkpoint_every", "5"}}, reply),
              EndedWith(grpc::FAILED_PRECONDITION, "--checkpoint_dir"));
  EXPECT_TRUE(Set({{"checkpoint_every", "0"}}, reply).ok());
}

TEST_F(PolicyServiceTest, LeaseActsAtOnceAndIsToldToWhoJoinsLater) {
  Start(TinyOptions());
  v1::SetPolicyReply reply;
  ASSERT_TRUE(Set({{"lease", "4s"}}, reply).ok());
  EXPECT_FALSE(reply.pending());
  EXPECT_EQ(Policy().policy_epoch(), 2);
  HandWorker worker(server_->address());
  ASSERT_TRUE(worker.Join(0).ok());
  EXPECT_EQ(worker.joined().lease_ms(), 4000);
}

TEST_F(PolicyServiceTest, EvictedRankIsVacantAndItsSessionOver) {
  StartTwoSteps();
  EXPECT_EQ(Evict(1, "another").error_code(), grpc::FAILED_PRECONDITION);
  EXPECT_EQ(Evict(2).error_code(), grpc::INVALID_ARGUMENT);
  ASSERT_TRUE(Evict(1).ok());
  EXPECT_THAT(workers_[1]->session().End(),
              EndedWith(grpc::ABORTED, "too slow"));
  EXPECT_EQ(Evict(1).error_code(), grpc::FAILED_PRECONDITION);

  // The rank is free for a successor at once.
  HandWorker successor(server_->address());
  EXPECT_TRUE(successor.Join(1).ok());
}

TEST_F(PolicyServiceTest, ResumedRunGoesOnWithThePolicyItHad) {
  StopAfterAChange();
  // The same command line as before, with sync and the default 0.5.
  options_.given = {"aggregation", "workers"};
  Start(options_);
  const v1::GetPolicyReply policy = Policy();
  EXPECT_THAT(policy.text(), HasSubstr("async, local"));
  EXPECT_EQ(policy.settings().at("learning_rate"), "0.25");
  EXPECT_EQ(policy.policy_epoch(), 2);
  ASSERT_EQ(policy.history_size(), 2);
  EXPECT_EQ(policy.history(1).version(), 1);
  StopAll();
  // No row was written twice.
  EXPECT_EQ(Lines("policy.csv").size(), 3u);
}

TEST_F(PolicyServiceTest, FlagThatIsGivenOnResumingIsAChangeOfPolicy) {
  StopAfterAChange();
  options_.given = {"aggregation", "workers"};
  options_.coordinator.policy.aggregation = AggregationKind::kBounded;
  Start(options_);
  const v1::GetPolicyReply policy = Policy();
  EXPECT_THAT(policy.text(), HasSubstr("bounded"));
  EXPECT_EQ(policy.settings().at("learning_rate"), "0.25");
  ASSERT_EQ(policy.history_size(), 3);
  EXPECT_EQ(policy.history(2).version(), 1);
  EXPECT_EQ(policy.history(2).settings_size(), 1);
  EXPECT_EQ(policy.history(2).settings().at("aggregation"), "bounded");
  StopAll();
  EXPECT_THAT(out_.str(), HasSubstr("policy async -> bounded at step 1\n"));
  const std::vector<std::string> rows = Lines("policy.csv");
  ASSERT_EQ(rows.size(), 4u);
  // Seconds continue from where the previous process stopped.
  EXPECT_THAT(rows[3], AllOf(StartsWith("3,1,4,0."),
                             HasSubstr(",\"aggregation=bounded\",")));
}

TEST_F(PolicyServiceTest, FlagsThatDoNotFitTheSettingsOfBeforeAreRefused) {
  StopAfterAChange();
  options_.given = {"normalization"};
  options_.coordinator.policy.normalization = NormalizationKind::kGlobal;
  EXPECT_THAT(StartServer(options_, out_),
              IsError(kInvalidArgument, "--normalization: got global"));
}

}  // namespace
}  // namespace cohort
