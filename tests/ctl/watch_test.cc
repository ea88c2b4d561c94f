#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "server/ctl/watch/sparkline.h"
#include "server/ctl/watch/stragglers.h"
#include "server/ctl/watch/watch_controls.h"
#include "server/ctl/watch/watch_frame.h"
#include "tests/ctl/ctl_harness.h"
#include "tests/ctl/prints_error.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

v1::WorkerStatus& AddWorker(v1::Status& status, double own_seconds,
                            double wait_seconds) {
  v1::WorkerStatus& worker = *status.add_workers();
  worker.set_rank(status.workers_size() - 1);
  worker.set_state("live");
  worker.set_incarnation(5);
  worker.set_batch_size(32);
  worker.set_description("host, process 9");
  (*worker.mutable_phase_seconds())["backward"] = own_seconds;
  (*worker.mutable_phase_seconds())["wait"] = wait_seconds / 2;
  (*worker.mutable_phase_seconds())["rendezvous"] = wait_seconds / 2;
  return worker;
}

std::string FrameOf(v1::Status status, ScreenSize size,
                    const std::string& notice = "",
                    const WatchView& view = {}) {
  *status.mutable_policy() = ChangedPolicy();
  Curve losses;
  for (double loss : {4.0, 3.0, 2.0, 1.0}) losses.Add(loss);
  return WatchFrame({.server = "a:1", .status = status}, losses, notice, view,
                    {.size = size, .unicode = true});
}

TEST(WatchFrameTest, ShowsTheRunWithin80Columns) {
  v1::Status status = ExampleStatus();
  status.set_test_accuracy(0.885);
  (*status.mutable_counters())["pushes_dropped"] = 3;
  (*status.mutable_counters())["workers_lost"] = 1;
  (*status.mutable_staleness_versions())[0] = 3;
  (*status.mutable_staleness_versions())[2] = 1;
  EXPECT_EQ(FrameOf(status, {.columns = 80, .rows = 24}),
            R"(run 3f2a at a:1
training, 1 of 2 workers

progress   [#############.......................]  38 % of the run, epoch 2 of 4
speed      10 images/s, ETA 25 s; 150 of 400 images, step 150
loss       0.4312 █▆▃▁
test       accuracy 88.5 %
policy     async, local normalisation, async statistics, since step 1234
learn rate 0.05
pushes     applied 300, dropped 3
events     workers lost 1
staleness  steps: 0: 75 %, 2-3: 25 %
late       worker 1: not there yet

rank  state   batch  heard from  own work  waits  process
0     live    64     0.3 s ago   750 ms    0 ms   host-a, process 12
1     vacant  0      never
)");
}

TEST(WatchFrameTest, HasEveryPhaseAt160Columns) {
  v1::Status status = ExampleStatus();
  const std::string frame = FrameOf(status, {.columns = 160, .rows = 24});
  EXPECT_THAT(frame,
              HasSubstr("rank  state   batch  heard from  data    forward"
                        "  rendezvous  backward  push  wait  cores  memory   "
                        "via  process\n"
                        "0     live    64     0.3 s ago   500 ms  250 ms"
                        "                                     1.4    "
                        "2.0 GiB  shm  host-a, process 12\n"));
}

TEST(WatchFrameTest, NeverLeavesTheScreenAndShowsTheLateFirst) {
  v1::Status status = ExampleStatus();
  status.clear_workers();
  for (int i = 0; i < 50; ++i) AddWorker(status, 0.1, 0.1);
  status.mutable_workers(49)->set_state("vacant");
  status.set_state(std::string(300, 'x'));
  for (const ScreenSize size : {ScreenSize{.columns = 80, .rows = 24},
                                ScreenSize{.columns = 160, .rows = 40},
                                ScreenSize{.columns = 40, .rows = 20}}) {
    const std::vector<std::string> lines =
        absl::StrSplit(FrameOf(status, size), '\n');
    EXPECT_LE(lines.size(), static_cast<size_t>(size.rows));
    for (const std::string& line : lines) {
      // Blocks of the curve take three bytes a character.
      EXPECT_LE(
          absl::StrReplaceAll(
              line,
              {{"█", "x"}, {"▆", "x"}, {"▃", "x"}, {"▁", "x"}, {"›", "x"}})
              .size(),
          static_cast<size_t>(size.columns));
    }
    EXPECT_THAT(lines[lines.size() - 2], EndsWith(" more"));
    EXPECT_THAT(FrameOf(status, size), HasSubstr("\n49    vacant"));
  }
}

TEST(WatchFrameTest, NoticeStandsInForTheStateOfARunThatIsNotSeen) {
  const std::string frame =
      FrameOf(ExampleStatus(), {.columns = 80, .rows = 24}, "lost the server");
  EXPECT_THAT(frame, HasSubstr("\nlost the server\n"));
  EXPECT_THAT(frame, Not(HasSubstr("training, 1 of 2")));
}

TEST(WatchFrameTest, WhatOthersSentCannotMoveTheCursor) {
  v1::Status status = ExampleStatus();
  status.set_run_id("a\x1b[2Jb");
  status.mutable_workers(0)->set_description("c\rd");
  const std::string frame = FrameOf(status, {.columns = 160, .rows = 24});
  EXPECT_EQ(frame.find('\x1b'), std::string::npos);
  EXPECT_EQ(frame.find('\r'), std::string::npos);
}

TEST(WatchFrameTest, AStateThatIsTooLongGoesOnInTheNextLine) {
  v1::Status status = ExampleStatus();
  status.set_state(
      "waiting for a replacement of workers 0, 1 and 2, 12 s, gives up");
  EXPECT_THAT(FrameOf(status, {.columns = 60, .rows = 24}),
              HasSubstr(" 2, 12 s, gives\nup\n\nprogress"));
}

TEST(WatchFrameTest, LongValuesGoOnInTheNextLineAndWideRowsAreMarked) {
  v1::Status status = ExampleStatus();
  status.mutable_workers(0)->set_description("a-machine-with-a-long-name.lan");
  const std::string frame = FrameOf(status, {.columns = 60, .rows = 24});
  EXPECT_THAT(frame, HasSubstr("\npolicy     async, local normalisation, async "
                               "statistics,\n           since step 1234\n"));
  EXPECT_THAT(frame, HasSubstr("›\n"));
  WatchView view;
  view.scrolled = 40;
  EXPECT_THAT(FrameOf(status, {.columns = 60, .rows = 24}, "", view),
              HasSubstr("a-machine-with-a-long-name.lan\n"));
}

TEST(WatchFrameTest, MarksTheSelectedWorkerAndKeepsItInSight) {
  v1::Status status = ExampleStatus();
  status.clear_workers();
  for (int i = 0; i < 50; ++i) AddWorker(status, 0.1, 0.1);
  WatchView view;
  view.selected = 30;
  view.line = "the last line";
  const std::string frame =
      FrameOf(status, {.columns = 80, .rows = 24}, "", view);
  EXPECT_THAT(frame, HasSubstr("\n> 30    live"));
  EXPECT_THAT(frame, EndsWith("\nthe last line\n"));
  const std::vector<std::string> lines = absl::StrSplit(frame, '\n');
  EXPECT_LE(lines.size(), 24U);
}

// Ranks of the workers in that order.
std::vector<int32_t> RanksBy(const v1::Status& status, WorkerOrder order,
                             const std::map<int32_t, std::string>& late = {},
                             bool late_first = false) {
  std::vector<int32_t> ranks;
  for (const v1::WorkerStatus* worker :
       OrderedWorkers(status, order, late, late_first)) {
    ranks.push_back(worker->rank());
  }
  return ranks;
}

TEST(OrderedWorkersTest, SortsByRankWorkOrSilence) {
  v1::Status status;
  AddWorker(status, 0.1, 0.3).set_silent_ms(10);
  AddWorker(status, 0.3, 0.1).set_silent_ms(30);
  AddWorker(status, 0.2, 0.2).set_silent_ms(20);
  EXPECT_THAT(RanksBy(status, WorkerOrder::kRank), ElementsAre(0, 1, 2));
  EXPECT_THAT(RanksBy(status, WorkerOrder::kRank, {{2, "away"}}, true),
              ElementsAre(2, 0, 1));
  EXPECT_THAT(RanksBy(status, WorkerOrder::kSlowest), ElementsAre(1, 2, 0));
  EXPECT_THAT(RanksBy(status, WorkerOrder::kSilent), ElementsAre(1, 2, 0));
}

TEST(WatchControlsTest, ArrowsSelectAndScroll) {
  WatchControls controls;
  const std::vector<int32_t> ranks = {4, 7, 9};
  controls.Type("\x1b[B", ranks);
  EXPECT_EQ(controls.view().selected, 4);
  controls.Type("\x1b[B\x1b[Bj", ranks);
  EXPECT_EQ(controls.view().selected, 9);
  controls.Type("k", ranks);
  EXPECT_EQ(controls.view().selected, 7);
  controls.Type("\x1b[5~", ranks);
  EXPECT_EQ(controls.view().selected, 4);
  controls.Type("\x1b[C\x1b[C\x1b[D", ranks);
  EXPECT_EQ(controls.view().scrolled, 8);
  controls.Type("\x1b[D\x1b[D", ranks);
  EXPECT_EQ(controls.view().scrolled, 0);
  WatchControls from_below;
  from_below.Type("\x1b[A", ranks);
  EXPECT_EQ(from_below.view().selected, 9);
  from_below.Type("\x1b[A", {});
  EXPECT_EQ(from_below.view().selected, 9);
}

TEST(WatchControlsTest, DrainsOnlyASelectedWorkerAndOnlyAfterYes) {
  WatchControls controls;
  const std::vector<int32_t> workers = {3};
  controls.Type("d", workers);
  EXPECT_THAT(controls.view().line, HasSubstr("select a worker"));
  controls.Type("jd", workers);
  EXPECT_EQ(controls.view().line, "let worker 3 leave after its step? y/n");
  EXPECT_THAT(controls.Type("n", workers), testing::IsEmpty());
  EXPECT_EQ(controls.view().line, "nothing was drained");
  const std::vector<WatchCommand> commands = controls.Type("dy", workers);
  ASSERT_EQ(commands.size(), 1U);
  EXPECT_EQ(commands[0].kind, WatchCommand::Kind::kDrainWorker);
  EXPECT_EQ(commands[0].rank, 3);
}

TEST(StragglersTest, NamesWhoIsAwaySilentOrSlow) {
  v1::Status status;
  AddWorker(status, 0.10, 0.2);
  AddWorker(status, 0.119, 0.2);
  AddWorker(status, 0.30, 0.0);
  v1::SlowWorker& slow = *status.add_slow_workers();
  slow.set_rank(2);
  slow.set_own_seconds(0.3);
  slow.set_median_seconds(0.1);
  AddWorker(status, 0.10, 0.2).set_silent_ms(7'000);
  v1::WorkerStatus& away = AddWorker(status, 0.10, 0.2);
  away.set_state("reconnecting");
  away.set_silent_ms(1'200);
  AddWorker(status, 0.30, 0.0).set_state("finished");
  EXPECT_THAT(
      Stragglers(status),
      ElementsAre(Pair(2, HasSubstr("300 ms of own work a step")),
                  Pair(3, "silent for 7 s"), Pair(4, "away for 1.2 s")));
}

TEST(SparklineTest, LowestIsLowestAndMoreValuesAreAveraged) {
  EXPECT_EQ(Sparkline({1, 2, 3, 4, 5, 6, 7, 8}, 8, true), "▁▂▃▄▅▆▇█");
  EXPECT_EQ(Sparkline({1, 8}, 8, false), "_#");
  EXPECT_EQ(Sparkline({0, 2, 8, 10}, 2, true), "▁█");
  EXPECT_EQ(Sparkline({3, 3}, 8, true), "▁▁");
  EXPECT_EQ(Sparkline({1, NAN, 8, INFINITY}, 8, true), "▁!█!");
  EXPECT_EQ(Sparkline({}, 8, true), "");
  EXPECT_EQ(Sparkline({1}, 0, true), "");
}

TEST(CurveTest, KeepsTheWholeRunInBoundedRoom) {
  Curve curve;
  for (int i = 0; i < 100'000; ++i) curve.Add(i);
  EXPECT_LE(curve.values().size(), 1024U);
  EXPECT_LT(curve.values().front(), 500);
  EXPECT_GT(curve.values().back(), 99'000);
}

// A run that answers `looks` requests and then ends.
void EndAfter(CtlHarness& ctl, int looks, int& seen) {
  ctl.server.on_status = [&seen, looks] {
    v1::Status status = ExampleStatus();
    status.set_version(150 + seen);
    status.set_ended(++seen >= looks);
    return status;
  };
}

class WatchVerbTest : public testing::Test {
 protected:
  CtlHarness ctl_;
};

TEST_F(WatchVerbTest, EndsWithTheRunAndIsLinesOffATerminal) {
  int seen = 0;
  EndAfter(ctl_, 3, seen);
  const CtlResult result = ctl_.Run("watch");
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(seen, 3);
  EXPECT_EQ(ctl_.paused(), absl::Seconds(20));
  EXPECT_THAT(result.out, HasSubstr("step 150, epoch 2 of 4, 37 % of the run"));
  EXPECT_THAT(result.out, HasSubstr("\nstep 152, "));
  EXPECT_EQ(result.out.find('\x1b'), std::string::npos);
}

TEST_F(WatchVerbTest, RedrawsATerminalInPlace) {
  ctl_.terminal = true;
  int seen = 0;
  EndAfter(ctl_, 2, seen);
  const CtlResult result = ctl_.Run("watch --interval=500ms");
  EXPECT_EQ(ctl_.paused(), absl::Milliseconds(500));
  const std::vector<std::string> frames = absl::StrSplit(result.out, "\x1b[J");
  ASSERT_EQ(frames.size(), 3U);
  EXPECT_THAT(frames[0], testing::StartsWith("\x1b[H\x1b[2Jrun 3f2a"));
  EXPECT_THAT(frames[1], testing::StartsWith("\x1b[Hrun 3f2a"));
  EXPECT_THAT(frames[1], HasSubstr("step 151\x1b[K\n"));
}

TEST_F(WatchVerbTest, KeysDrainAWorker) {
  ctl_.terminal = true;
  v1::EvictRequest evicted;
  ctl_.server.on_evict = [&evicted](const v1::EvictRequest& request) {
    evicted = request;
    return v1::EvictReply();
  };
  ctl_.typed = {"j", "dy", "q"};
  const CtlResult result = ctl_.Run("watch");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(evicted.run_id(), "3f2a");
  EXPECT_TRUE(evicted.after_step());
  EXPECT_EQ(evicted.rank(), 0);
  EXPECT_THAT(result.out, HasSubstr("worker 0 leaves after its current step"));
}

TEST_F(WatchVerbTest, ARefusedCommandIsShownAndTheWatchGoesOn) {
  ctl_.terminal = true;
  ctl_.server.on_evict = [](const v1::EvictRequest&) {
    return absl::InvalidArgumentError("no such rank");
  };
  ctl_.typed = {"jdy", "s", "q"};
  const CtlResult result = ctl_.Run("watch");
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, HasSubstr("drain: no such rank"));
  EXPECT_THAT(result.out, HasSubstr("s order (slowest first)"));
}

TEST_F(WatchVerbTest, OutlivesARestartOfTheServer) {
  for (const bool json : {false, true}) {
    CtlHarness ctl;
    int seen = 0;
    ctl.server.on_status = [&]() -> absl::StatusOr<v1::Status> {
      // More often than one call is repeated.
      constexpr int kAbsent = 15;
      ++seen;
      if (seen >= 2 && seen < 2 + kAbsent) {
        return absl::UnavailableError("restarting");
      }
      v1::Status status = ExampleStatus();
      status.set_ended(seen == 3 + kAbsent);
      return status;
    };
    const CtlResult result = ctl.Run(json ? "watch --json" : "watch");
    EXPECT_EQ(result.code, 0) << result.err;
    if (json) {
      const std::vector<std::string> lines = absl::StrSplit(result.out, '\n');
      ASSERT_EQ(lines.size(), 6U);
      EXPECT_EQ(nlohmann::json::parse(lines[0])["version"], 150);
      EXPECT_EQ(nlohmann::json::parse(lines[1])["event"], "lost");
      EXPECT_EQ(nlohmann::json::parse(lines[2])["event"], "again");
      EXPECT_EQ(nlohmann::json::parse(lines[4])["ended"], true);
    } else {
      EXPECT_THAT(result.out,
                  HasSubstr("gives up in 1 min\n"
                            "the server is there again, step 150\n"));
    }
  }
}

TEST_F(WatchVerbTest, GivesUpOnAServerThatStaysAwayAndEndsWithOneThatWasDone) {
  for (const bool done : {false, true}) {
    CtlHarness ctl;
    v1::Status& status = ctl.server.status;
    if (done) status.set_samples(status.samples_total());
    ctl.server.on_status = [&,
                            seen = 0]() mutable -> absl::StatusOr<v1::Status> {
      if (++seen > 1) return absl::UnavailableError("gone");
      return status;
    };
    const CtlResult result = ctl.Run("watch --timeout=30s");
    EXPECT_EQ(result.code, done ? 0 : 5);
    EXPECT_EQ(ctl.paused(), absl::Seconds(done ? 10 : 40));
    EXPECT_THAT(result.out,
                HasSubstr(done ? "the server has ended" : "lost the server"));
  }
}

TEST_F(WatchVerbTest, ServerThatWasNeverThereIsExitCode5AtOnce) {
  ctl_.server.Shutdown();
  EXPECT_EQ(ctl_.Run("watch").code, 5);
  EXPECT_EQ(ctl_.paused(), absl::ZeroDuration());
}

}  // namespace
}  // namespace cohort
