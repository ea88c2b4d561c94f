#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/build_info.h"
#include "server/ctl/doctor/folder_checks.h"
#include "server/ctl/doctor/server_checks.h"
#include "tests/ctl/ctl_harness.h"
#include "tests/fakes/temp_dir.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Result = Check::Result;

constexpr uint64_t kMib = uint64_t{1} << 20;

// The checks of one run of doctor, by name.
std::map<std::string, nlohmann::json> ChecksOf(const CtlResult& result) {
  std::map<std::string, nlohmann::json> checks;
  const nlohmann::json all = nlohmann::json::parse(result.out);
  for (const nlohmann::json& check : all["checks"]) {
    checks[check["check"].get<std::string>()] = check;
  }
  return checks;
}

v1::Status HealthyStatus() {
  v1::Status status = ExampleStatus();
  status.set_build(BuildText());
  status.mutable_workers()->RemoveLast();
  status.mutable_workers(0)->set_build(BuildText());
  status.set_server_unix_us(absl::ToUnixMicros(absl::Now()));
  return status;
}

class DoctorTest : public testing::Test {
 protected:
  CtlHarness ctl_;
};

TEST_F(DoctorTest, HealthyRunIsExitCode0) {
  ctl_.server.status = HealthyStatus();
  const CtlResult result = ctl_.Run("doctor --json");
  EXPECT_EQ(result.code, 0) << result.out;
  EXPECT_EQ(nlohmann::json::parse(result.out)["ok"], true);
  for (const char* name :
       {"address", "server", "run", "versions", "clock", "workers"}) {
    EXPECT_EQ(ChecksOf(result)[name]["result"], "ok") << name;
  }
}

TEST_F(DoctorTest, FindsAWrongAddress) {
  ctl_.server.Shutdown();
  const CtlResult result = ctl_.Run("doctor");
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out, HasSubstr(absl::StrCat("no connection: ",
                                                 ctl_.server.address())));
  EXPECT_THAT(result.out, HasSubstr("address: nothing listens there"));
  EXPECT_THAT(result.out, HasSubstr("server   skipped"));
  for (const char* wrong : {"nowhere.invalid:7070", "127.0.0.1", "a:b:c"}) {
    const CtlResult of = ctl_.RunPlain(
        absl::StrCat("doctor --json --timeout=2s --server=", wrong));
    EXPECT_EQ(of.code, 1);
    EXPECT_EQ(ChecksOf(of)["address"]["result"], "failed") << wrong;
  }
}

TEST_F(DoctorTest, LooksAtUnixSockets) {
  const CtlResult missing =
      ctl_.RunPlain("doctor --server=unix:/nowhere/cohort");
  EXPECT_EQ(missing.code, 1);
  EXPECT_THAT(missing.out, HasSubstr("no connection: unix:/nowhere/cohort"));
  EXPECT_THAT(missing.out, HasSubstr("address: start cohort-server"));
  const Check connection =
      CheckConnection({}, "unix:/nowhere/cohort", absl::Now());
  EXPECT_EQ(connection.result, Result::kOk);
  EXPECT_THAT(connection.found, HasSubstr("on this machine"));
}

// Wraps between words at the terminal's width, here 80 columns.
TEST_F(DoctorTest, WrapsItsSentencesOnATerminal) {
  ctl_.server.Shutdown();
  EXPECT_THAT(ctl_.Run("doctor").out,
              HasSubstr("address that it printed as --server"));
  ctl_.terminal = true;
  const std::string out = ctl_.Run("doctor").out;
  EXPECT_THAT(out, HasSubstr("pass the address that it\nprinted as --server; "
                             "one"));
  for (const absl::string_view line : absl::StrSplit(out, '\n')) {
    EXPECT_LE(line.size(), 80u) << std::string(line);
  }
}

TEST_F(DoctorTest, FindsAVersionSkewAndAWrongClock) {
  v1::Status& status = ctl_.server.status = HealthyStatus();
  status.set_build("9.9.9 (commit 0123456789ab)");
  status.set_server_unix_us(absl::ToUnixMicros(absl::Now() - absl::Hours(1)));
  const CtlResult result = ctl_.Run("doctor --json");
  EXPECT_EQ(result.code, 1);
  auto checks = ChecksOf(result);
  EXPECT_EQ(checks["versions"]["result"], "failed");
  EXPECT_EQ(checks["versions"]["found"],
            absl::StrCat("cohortctl is ", BuildText(),
                         "; the server is 9.9.9 (commit 0123456789ab)"));
  EXPECT_EQ(checks["clock"]["result"], "failed");
}

TEST_F(DoctorTest, FindsThatItIsNoCohortServer) {
  ctl_.server.on_status = [] { return absl::UnimplementedError(""); };
  const CtlResult result = ctl_.Run("doctor");
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out, HasSubstr("something else than a Cohort server"));
}

TEST_F(DoctorTest, ADataShardIsNotTakenForAnotherProgram) {
  ctl_.server.on_status = [] {
    return absl::UnimplementedError(
        "this is a data shard (cohort-server --data_shard)");
  };
  const CtlResult result = ctl_.Run("doctor");
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out, HasSubstr("this is a data shard"));
  EXPECT_THAT(result.out, HasSubstr("Pass that address as --server"));
  EXPECT_THAT(result.out, Not(HasSubstr("something else")));
}

TEST_F(DoctorTest, OpsPortThatWasNamedMustAnswer) {
  ctl_.server.status = HealthyStatus();
  const CtlResult named =
      ctl_.Run("doctor --json --ops=127.0.0.1:1 --timeout=2s");
  EXPECT_EQ(named.code, 1);
  EXPECT_EQ(ChecksOf(named)["ops port"]["result"], "failed");
}

// A full disk and a rank that is away each cause two findings.
TEST_F(DoctorTest, SaysOnceWhatSeveralFindingsNeed) {
  v1::Status& status = ctl_.server.status = HealthyStatus();
  status.set_audit_problem("a.jsonl: disk full");
  status.set_checkpoint_problem("checkpoint of step 7: disk full");
  const CtlResult json = ctl_.Run("doctor --json");
  EXPECT_EQ(json.code, 1);
  auto checks = ChecksOf(json);
  const auto fix = checks["audit log"]["fix"].get<std::string>();
  EXPECT_EQ(checks["checkpoints"]["fix"], fix);
  const std::vector<std::string> parts =
      absl::StrSplit(ctl_.Run("doctor").out, fix);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_TRUE(absl::EndsWith(parts[0], "\naudit log, checkpoints: "));
  EXPECT_EQ(CheckRoom("results_dir", "a", kMib).fix,
            CheckRoom("checkpoint_dir", "b", kMib).fix);
}

TEST(WorkersCheckTest, OnlyItSaysHowToStartWorkers) {
  v1::Status status = ExampleStatus();
  status.set_phase("waiting");
  status.add_waited_for(1);
  for (const int32_t workers_min : {0, 2}) {
    status.set_workers_min(workers_min);
    EXPECT_THAT(CheckRun(status).fix, HasSubstr("cohortctl policy set --"));
    EXPECT_THAT(CheckRun(status).fix, Not(HasSubstr("start")));
    EXPECT_THAT(CheckWorkers(status).fix, HasSubstr("cohort-worker --server="));
  }
}

TEST_F(DoctorTest, ARunThatWaitsForWhoIsAwayIsExitCode1) {
  v1::Status& status = ctl_.server.status = HealthyStatus();
  status.set_phase("waiting");
  status.set_state("waiting for worker 1");
  status.add_waited_for(1);
  v1::WorkerStatus& away = *status.add_workers();
  away.set_rank(1);
  away.set_state("vacant");
  const CtlResult result = ctl_.Run("doctor --json");
  EXPECT_EQ(result.code, 1) << result.out;
  EXPECT_EQ(nlohmann::json::parse(result.out)["ok"], false);
  EXPECT_EQ(ChecksOf(result)["run"]["result"], "failed");
  EXPECT_EQ(ChecksOf(result)["run"]["found"],
            "it makes no progress: waiting for worker 1");
}

TEST_F(DoctorTest, AMissingDataShardIsTheFirstFindingAndWorkersAreNotBlamed) {
  v1::Status& status = ctl_.server.status = StatusWithoutShard();
  // They come back when the shard does.
  status.mutable_workers(0)->set_state("vacant");
  const CtlResult result = ctl_.Run("doctor --json --ops=127.0.0.1:1");
  EXPECT_EQ(result.code, 1) << result.out;
  const nlohmann::json all = nlohmann::json::parse(result.out)["checks"];
  const auto first = std::find_if(
      all.begin(), all.end(),
      [](const nlohmann::json& check) { return check["result"] != "ok"; });
  EXPECT_EQ((*first)["check"], "shards");
  EXPECT_EQ((*first)["result"], "failed");
  EXPECT_THAT((*first)["found"].get<std::string>(),
              HasSubstr("data shard 1 at b:7070, gone for 12 s"));
  EXPECT_THAT((*first)["fix"].get<std::string>(), HasSubstr("--data_shard"));
  auto checks = ChecksOf(result);
  EXPECT_EQ(checks["run"]["result"], "failed");
  EXPECT_EQ(checks["workers"]["result"], "skipped");
  for (const char* name : {"run", "workers"}) {
    EXPECT_TRUE(checks[name]["fix"].is_null()) << name;
  }
}

TEST(ShardsCheckTest, OneThatNeverCameIsToldFromOneThatIsGone) {
  v1::Status status = StatusWithoutShard();
  status.mutable_shards(1)->clear_generation();
  status.mutable_shards(1)->clear_lost_because();
  EXPECT_EQ(CheckShards(status).found,
            "1 of 2 connected: data shard 1 at b:7070, not there yet");
  EXPECT_EQ(CheckShards(status).result, Result::kFailed);
  status.set_ended(true);
  EXPECT_EQ(CheckShards(status).result, Result::kWarning);
  status.mutable_shards(1)->set_connected(true);
  EXPECT_EQ(CheckShards(status).result, Result::kOk);
  EXPECT_EQ(CheckShards(status).found, "all 2 are connected");
}

TEST(RunCheckTest, TellsAHaltFromADelayAndFromTheEnd) {
  v1::Status status = ExampleStatus();
  status.set_phase("training");
  EXPECT_EQ(CheckRun(status).result, Result::kOk);
  status.set_phase("waiting");
  status.set_state("waiting for worker 0, 3 s, gives up in 297 s");
  status.add_waited_for(0);
  EXPECT_EQ(CheckRun(status).result, Result::kWarning);
  status.add_waited_for(1);  // Vacant.
  EXPECT_EQ(CheckRun(status).result, Result::kFailed);
  status.set_ended(true);
  status.set_state("over: no replacement for rank 1 in 600 s");
  EXPECT_EQ(CheckRun(status).result, Result::kWarning);
  status.set_samples(status.samples_total());
  EXPECT_EQ(CheckRun(status).result, Result::kOk);
}

TEST(OpsAddressTest, IsTheFlagsThenTheServersThenAGuess) {
  using From = OpsAddress::From;
  v1::Status status;
  const auto of = [&status](const std::optional<std::string>& named) {
    const OpsAddress ops = OpsAddressOf(named, "host:7070", status);
    return std::make_pair(ops.address, ops.from);
  };
  EXPECT_EQ(of("a:1"), std::make_pair(std::string("a:1"), From::kFlag));
  EXPECT_EQ(of({}), std::make_pair(std::string("host:7071"), From::kGuess));
  status.set_ops_address("127.0.0.1:9");
  EXPECT_EQ(of({}), std::make_pair(std::string("127.0.0.1:9"), From::kServer));
  status.set_ops_address("0.0.0.0:9");
  EXPECT_EQ(of({}), std::make_pair(std::string("host:9"), From::kServer));
  EXPECT_EQ(OpsAddressOf({}, "unix:/run/cohort", status).address,
            "127.0.0.1:9");
  EXPECT_EQ(OpsAddressOf({}, "unix:/run/cohort", {}).address, "127.0.0.1:7071");
  status.set_ops_address("");
  EXPECT_EQ(of({}), std::make_pair(std::string(), From::kServer));
}

TEST(OpsCheckTest, SaysWhenItGuessed) {
  const Check check =
      CheckOpsPort({.address = "127.0.0.1:1"}, TlsFiles(), absl::Seconds(2));
  EXPECT_EQ(check.result, Result::kSkipped);
  EXPECT_THAT(check.found, HasSubstr("127.0.0.1:1, a guess, does not answer"));
  EXPECT_EQ(CheckOpsPort(
                {.address = "127.0.0.1:1", .from = OpsAddress::From::kServer},
                TlsFiles(), absl::Seconds(2))
                .result,
            Result::kWarning);
}

TEST(VersionsCheckTest, SameReleaseOfAnotherCommitIsAWarning) {
  v1::Status status;
  status.set_build("0.1.0 (commit a)");
  for (int rank = 0; rank < 3; ++rank) {
    v1::WorkerStatus& worker = *status.add_workers();
    worker.set_rank(rank);
    worker.set_state(rank == 2 ? "vacant" : "live");
    worker.set_build(rank == 0 ? "0.1.0 (commit a)" : "0.1.0 (commit b)");
  }
  const Check check = CheckVersions("0.1.0 (commit a)", status);
  EXPECT_EQ(check.result, Result::kWarning);
  EXPECT_EQ(check.found,
            "cohortctl is 0.1.0 (commit a); worker 1 is 0.1.0 (commit b)");
  // A worker in Python says so, and is no other version for that.
  status.mutable_workers(1)->set_build("cohort (Python) 0.1.0 (commit a)");
  EXPECT_EQ(CheckVersions("0.1.0 (commit a)", status).result, Result::kOk);
  status.mutable_workers(1)->set_build("cohort (Python) 0.2.0 (commit a)");
  EXPECT_EQ(CheckVersions("0.1.0 (commit a)", status).result, Result::kFailed);
  status.mutable_workers(1)->set_build("0.1.0 (commit a)");
  status.mutable_workers(0)->clear_build();
  EXPECT_EQ(CheckVersions("0.1.0 (commit a)", status).result, Result::kFailed);
}

TEST(ClockCheckTest, TellsByHowMuchAndWhichWay) {
  const absl::Time asked = absl::FromUnixSeconds(1'000);
  const absl::Time answered = asked + absl::Seconds(2);
  v1::Status status;
  EXPECT_EQ(CheckClock(status, asked, answered).result, Result::kSkipped);
  const auto at = [&](int seconds) {
    status.set_server_unix_us(1'000'000L * seconds);
    return CheckClock(status, asked, answered);
  };
  // The difference is within the duration of the call, so the clock may be
  // right.
  EXPECT_EQ(at(1'001).result, Result::kOk);
  EXPECT_EQ(at(1'012).result, Result::kWarning);
  EXPECT_EQ(at(1'012).found, "the server's is 10 s ahead");
  EXPECT_EQ(at(400).result, Result::kFailed);
  EXPECT_EQ(at(400).found, "the server's is 10 min behind");
}

TEST(WorkersCheckTest, NamesThoseThatAreAway) {
  const Check check = CheckWorkers(ExampleStatus());
  EXPECT_EQ(check.result, Result::kWarning);
  EXPECT_EQ(check.found, "1 of 2 are away: rank 1");
}

TEST(WorkersCheckTest, AnElasticCohortMayHaveVacantRanks) {
  v1::Status status = ExampleStatus();
  status.set_workers_expected(2);
  status.set_workers_min(1);
  EXPECT_EQ(CheckWorkers(status).result, Result::kOk);
  EXPECT_EQ(CheckWorkers(status).found, "1 are there, 1 to 2 may be");
  status.set_workers_min(2);
  EXPECT_EQ(CheckWorkers(status).result, Result::kWarning);
}

TEST(RunCheckTest, AnElasticCohortBelowItsMinimumNeedsAnyWorker) {
  v1::Status status = ExampleStatus();
  status.set_workers_expected(3);
  status.set_workers_min(2);
  status.set_ended(false);
  status.set_phase("waiting");
  status.set_state("waiting for 1 more worker");
  status.clear_waited_for();
  const Check check = CheckRun(status);
  EXPECT_EQ(check.result, Result::kFailed);
  EXPECT_THAT(check.fix, HasSubstr("policy set --workers=MIN:3"));
}

TEST(RoomCheckTest, AFullDiskFails) {
  EXPECT_EQ(CheckRoom("results_dir", "d", 2048 * kMib).result, Result::kOk);
  EXPECT_EQ(CheckRoom("results_dir", "d", 500 * kMib).result, Result::kWarning);
  const Check full = CheckRoom("results_dir", "d", 3 * kMib);
  EXPECT_EQ(full.result, Result::kFailed);
  EXPECT_EQ(full.found, "d: writable, 3 MiB free");
}

class FolderTest : public ::testing::Test {
 protected:
  const TempDir dir_;
  const std::filesystem::path folder_ = dir_.path();
};

TEST_F(FolderTest, FolderThatIsNotThereYetIsTriedWhereItWouldBe) {
  const std::string wanted = (folder_ / "a/b").string();
  EXPECT_NE(CheckFolder("results_dir", wanted).result, Result::kSkipped);
  EXPECT_THAT(CheckFolder("results_dir", wanted).found, HasSubstr("writable"));
  // The check leaves nothing behind.
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(FolderTest, FileInTheWayFails) {
  WriteText(dir_.File("file"), "x");
  const Check check = CheckFolder("results_dir", (folder_ / "file/b").string());
  EXPECT_EQ(check.result, Result::kFailed);
  EXPECT_THAT(check.found, HasSubstr("is no folder"));
}

TEST_F(FolderTest, FolderThatCannotBeWrittenFails) {
  // No user may create files there, not even root.
  const Check check = CheckFolder("checkpoint_dir", "/proc/self");
  EXPECT_EQ(check.result, Result::kFailed);
  EXPECT_THAT(check.fix, HasSubstr("/proc/self"));
}

}  // namespace
}  // namespace cohort
