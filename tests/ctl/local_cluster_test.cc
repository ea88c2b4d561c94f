// Clusters of small scripts that a test defines.

#include "server/ctl/cluster/local_cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "server/ctl/cluster/line_buffer.h"
#include "tests/fakes/statuses.h"
#include "tests/fakes/temp_dir.h"

namespace cohort {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kRound = absl::Milliseconds(20);
constexpr absl::Duration kTestMax = absl::Seconds(30);

// Writes its address as cohort-server does; `await FILE` waits for a file of
// the test's folder.
constexpr absl::string_view kServerHead = R"sh(#!/bin/bash
cd "$(dirname "$0")"
for flag in "$@"; do
  case "$flag" in --address_file=*) file=${flag#*=} ;; esac
done
listen() { echo 127.0.0.1:1234 >"$file.new"; mv "$file.new" "$file"; }
await() { until [[ -e "$1" ]]; do sleep 0.02; done; }
echo "$@"
)sh";
constexpr absl::string_view kWorkerHead = R"sh(#!/bin/bash
cd "$(dirname "$0")"
for flag in "$@"; do
  case "$flag" in --rank=*) rank=${flag#*=} ;; esac
done
await() { until [[ -e "$1" ]]; do sleep 0.02; done; }
touch "started-$rank"
)sh";

class LocalClusterTest : public ::testing::Test {
 protected:
  void Play(absl::string_view server, absl::string_view worker) {
    Script("cohort-server", absl::StrCat(kServerHead, server, "\n"));
    Script("cohort-worker", absl::StrCat(kWorkerHead, worker, "\n"));
  }

  absl::Status Start(int32_t workers,
                     std::vector<std::string> server_flags = {},
                     std::vector<std::string> worker_flags = {},
                     absl::Duration listen_patience = kTestMax) {
    absl::StatusOr<ClusterPrograms> programs = FindPrograms(folder_.string());
    if (!programs.ok()) return programs.status();
    ClusterHooks hooks;
    hooks.on_line = [this](const ClusterProcess& process,
                           absl::string_view line) {
      lines_[process.Name()].emplace_back(line);
    };
    hooks.on_end = [this](const ClusterProcess& process,
                          const ProcessEnd& end) {
      ends_.push_back(absl::StrCat(process.Name(), " ", end.Text()));
    };
    absl::StatusOr<std::unique_ptr<LocalCluster>> cluster =
        LocalCluster::Start({.programs = *programs,
                             .workers = workers,
                             .shards = shards_,
                             .server_flags = std::move(server_flags),
                             .worker_flags = std::move(worker_flags),
                             .worker_command = worker_command_,
                             .listen_patience = listen_patience,
                             .stop_patience = stop_patience_},
                            std::move(hooks), clock_);
    if (cluster.ok()) cluster_ = *std::move(cluster);
    return cluster.status();
  }

  // Polls until the condition holds; returns the first error.
  absl::Status PollUntil(const std::function<bool()>& condition) {
    absl::Status first;
    const Instant end = clock_.Now() + kTestMax;
    while (!condition() && clock_.Now() < end) {
      const absl::Status status = cluster_->Poll(kRound);
      if (first.ok()) first = status;
    }
    EXPECT_TRUE(condition()) << "gave up waiting";
    return first;
  }
  absl::Status PollUntilDone() {
    return PollUntil([this] { return cluster_->done(); });
  }
  void RunToTheEnd(int32_t workers, std::vector<std::string> server_flags = {},
                   std::vector<std::string> worker_flags = {}) {
    ExpectOk(Start(workers, std::move(server_flags), std::move(worker_flags)));
    ASSERT_TRUE(PollUntilDone().ok());
  }
  bool Exists(const std::string& name) {
    return std::filesystem::exists(folder_ / name);
  }
  void Touch(const std::string& name) { std::ofstream(folder_ / name); }
  // Expects that the process whose number a file holds ends soon, or is a
  // zombie that its parent has not reaped yet.
  void ExpectGone(const std::string& file) {
    pid_t pid = 0;
    std::ifstream(folder_ / file) >> pid;
    ASSERT_GT(pid, 0);
    const Instant end = clock_.Now() + kTestMax;
    std::string state;
    do {
      std::ifstream stat(absl::StrCat("/proc/", pid, "/stat"));
      std::string skipped;
      state = "gone";
      stat >> skipped >> skipped >> state;
    } while (state != "gone" && state != "Z" && clock_.Now() < end);
    EXPECT_THAT((std::vector<std::string>{"gone", "Z"}), Contains(state));
  }
  void Script(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
    std::filesystem::permissions(folder_ / name,
                                 std::filesystem::perms::owner_all);
  }

  int32_t shards_ = 1;
  absl::Duration stop_patience_ = kTestMax;
  std::vector<std::string> worker_command_;
  const SteadyClock clock_{};
  const TempDir dir_;
  const std::filesystem::path folder_ = dir_.path();
  std::map<std::string, std::vector<std::string>> lines_;
  std::vector<std::string> ends_;
  std::unique_ptr<LocalCluster> cluster_;
};

TEST_F(LocalClusterTest, AProgramInPlaceOfTheWorkerFindsServerAndRank) {
  Play("listen; await done-0; await done-1", "");
  worker_command_ = {"/bin/sh", "-c",
                     absl::StrCat("echo $0 $COHORT_SERVER $COHORT_RANK; touch ",
                                  folder_.string(), "/done-$COHORT_RANK"),
                     "train"};
  RunToTheEnd(2);
  EXPECT_THAT(lines_["worker 0"], ElementsAre("train 127.0.0.1:1234 0"));
  EXPECT_THAT(lines_["worker 1"], ElementsAre("train 127.0.0.1:1234 1"));
}

TEST_F(LocalClusterTest, FlagsOfAWorkerThatIsNotThereAreRefused) {
  Play("", "");
  worker_command_ = {"python3", "train.py"};
  EXPECT_THAT(Start(1, {}, {"--threads=2"}).message(),
              AllOf(HasSubstr("--threads=2"), HasSubstr("python3")));
}

// The port that the environment may name is shard 0's.
TEST_F(LocalClusterTest, ADataShardHasATimelineOfItsOwnAndNoOperationsPort) {
  Play("listen; await started-0", "");
  shards_ = 2;
  RunToTheEnd(1, {"--trace", "a.b/s.json"});
  EXPECT_THAT(lines_["shard 1"][0],
              AllOf(HasSubstr(" --ops_listen= "),
                    HasSubstr(" --trace=a.b/s.shard1.json")));
  EXPECT_THAT(lines_["server"][0], AllOf(HasSubstr(" --trace a.b/s.json"),
                                         HasSubstr(" --listen=127.0.0.1:0")));
}

TEST_F(LocalClusterTest, EachWorkerHasATimelineAndAnExchangeLogOfItsOwn) {
  Play("listen; await started-1; await started-0", "echo $@");
  RunToTheEnd(2, {}, {"--trace=a.b/w.json", "--exchange_log", "w.jsonl"});
  EXPECT_THAT(lines_["worker 1"],
              ElementsAre("--server=127.0.0.1:1234 --rank=1 "
                          "--trace=a.b/w.1.json --exchange_log w.1.jsonl"));
}

TEST_F(LocalClusterTest, KillsWhatDoesNotStopAndWhatItStarted) {
  Play("trap '' TERM; listen; await never",
       "trap '' TERM; sleep 1000 & echo $! >child; await never");
  stop_patience_ = absl::Milliseconds(300);
  ASSERT_TRUE(Start(1).ok());
  ASSERT_TRUE(PollUntil([this] { return Exists("child"); }).ok());
  cluster_->Stop();
  EXPECT_THAT(ends_, ElementsAre("server was ended by signal 9 (Killed)",
                                 "worker 0 was ended by signal 9 (Killed)"));
  ExpectGone("child");
}

TEST_F(LocalClusterTest, ServerThatEndsBeforeItListensStartsNoWorker) {
  Play("echo why; exit 3", "");
  RunToTheEnd(2);
  EXPECT_EQ(cluster_->server_end()->code, 3);
  EXPECT_THAT(lines_["server"], Contains("why"));
  EXPECT_FALSE(Exists("started-0"));
}

TEST_F(LocalClusterTest, ServerThatDoesNotListenIsToldAndStopped) {
  Play("await never", "");
  ASSERT_TRUE(Start(1, {}, {}, absl::Milliseconds(100)).ok());
  EXPECT_THAT(PollUntilDone(), IsError(kDeadlineExceeded, "0.1 s"));
}

TEST_F(LocalClusterTest, RefusesWhatItSetsItselfAndProgramsThatAreNotThere) {
  EXPECT_THAT(std::string(Start(1).message()), HasSubstr("cohort-server"));
  Play("", "");
  for (const absl::Status& status :
       {Start(0), Start(1, {"--address_file=x"}), Start(1, {"--workers", "3"}),
        Start(1, {}, {"--rank=1"}), Start(1, {}, {"--server=a:1"})}) {
    EXPECT_EQ(status.code(), kInvalidArgument);
  }
}

TEST_F(LocalClusterTest, ProgramThatCannotRunIsTold) {
  Play("listen; await never", "");
  Script("cohort-server", "#!/no/such/interpreter\n");
  EXPECT_THAT(Start(1), IsError(kNotFound, "cohort-server"));
}

TEST(LineBufferTest, LinesComeWholeHoweverTheyWereCut) {
  std::vector<std::string> lines;
  const auto keep = [&](absl::string_view line) { lines.emplace_back(line); };
  LineBuffer buffer;
  buffer.Append("a", keep);
  EXPECT_THAT(lines, IsEmpty());
  buffer.Append("b\n\nc\r\nd", keep);
  EXPECT_THAT(lines, ElementsAre("ab", "", "c"));
  buffer.Flush(keep);
  buffer.Flush(keep);
  EXPECT_THAT(lines, ElementsAre("ab", "", "c", "d"));
  buffer.Append(std::string(100'000, 'x'), keep);
  EXPECT_EQ(lines.back().size(), 100'000U);
}

}  // namespace
}  // namespace cohort
