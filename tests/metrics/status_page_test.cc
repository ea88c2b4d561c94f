// The files of the live page.

#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/status/status_json.h"
#include "server/status_page/page_routes.h"
#include "server/status_page/report.h"
#include "tests/metrics/made_up_figures.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

nlohmann::json Parsed(const RunFigures& figures) {
  return nlohmann::json::parse(StatusJson(figures, StatusParts::kAll));
}

TEST(StatusJsonTest, SaysWhatTheFiguresSay) {
  const nlohmann::json status = Parsed(BusyFigures(2));
  EXPECT_EQ(status["run_id"], "run1");
  EXPECT_EQ(status["build"], "1.2.3 (commit abc)");
  EXPECT_EQ(status["phase"], "training");
  EXPECT_EQ(status["version"], 40);
  EXPECT_EQ(status["eta_seconds"], 3);
  EXPECT_EQ(status["train_loss"], 0.5);
  EXPECT_EQ(status["train_accuracy"], nullptr);
  EXPECT_EQ(status["push_verdicts"]["applied"], 10);
  EXPECT_EQ(status["workers"].size(), 2);
  EXPECT_EQ(status["workers"][1]["activity"], "computing");
  EXPECT_EQ(status["workers"][1]["last_arrivals"], 9);
  EXPECT_EQ(status["workers"][1]["silent_ms"], 500);
  EXPECT_EQ(status["workers"][1]["phase_seconds"]["forward"], 0.5);
  EXPECT_EQ(status["workers"][1]["cpu_cores"], 1.5);
  EXPECT_EQ(status["workers"][1]["resident_bytes"], int64_t{3} << 30);
  EXPECT_EQ(status["workers"][1]["transport"], "tcp");
  EXPECT_EQ(status["batch_norm"]["layers"][0]["drift"], 0.125);
  EXPECT_EQ(status["curves"]["train"][0]["version"], 40);
  EXPECT_EQ(status["test_version"], 40);
  EXPECT_EQ(status["test_accuracy"], 0.75);
  EXPECT_EQ(status["test_miou"], nullptr);
  EXPECT_EQ(status["staleness_versions"].dump(), R"({"0":5,"1":4,"3":3})");
}

TEST(StatusJsonTest, HasItsPartsOnlyOnRequest) {
  const RunFigures figures = BusyFigures(2);
  nlohmann::json all = Parsed(figures);
  EXPECT_EQ(all["policy"]["history"].size(), 1);
  all["curves"] = nullptr;
  all["events"] = nlohmann::json::array();
  all["policy"]["history"] = nlohmann::json::array();
  EXPECT_EQ(nlohmann::json::parse(StatusJson(figures, StatusParts::kNone)),
            all);
}

TEST(StatusJsonTest, SaysWhichShardIsGoneAndSinceWhen) {
  RunFigures figures = BusyFigures(2);
  EXPECT_EQ(Parsed(figures)["shards"].size(), 0);
  figures.shards = {{.shard = 0, .partitions = 3},
                    {.shard = 1,
                     .address = "a:1",
                     .connected = false,
                     .since = 988,
                     .lost_because = "killed",
                     .losses = 1,
                     .generation = 9,
                     .prepare_seconds = 0.5}};
  const nlohmann::json shards = Parsed(figures)["shards"];
  EXPECT_EQ(shards[0]["connected"], true);
  EXPECT_EQ(shards[0]["since_unix_s"], nullptr);
  EXPECT_EQ(shards[0]["prepare_seconds"], nullptr);
  EXPECT_EQ(shards[1]["address"], "a:1");
  EXPECT_EQ(shards[1]["connected"], false);
  EXPECT_EQ(shards[1]["since_unix_s"], 988);
  EXPECT_EQ(shards[1]["lost_because"], "killed");
  EXPECT_EQ(shards[1]["prepare_seconds"], 0.5);
}

TEST(StatusJsonTest, NamesWorkersThatAreMuchSlowerThanHalfOfThem) {
  RunFigures figures = BusyFigures(4);
  auto& workers = figures.status.workers;
  for (auto& worker : workers) worker.report.phases = {{"forward", 0.1}};
  workers[1].report.phases = {{"forward", 0.119}, {"wait", 9}};
  workers[2].report.phases = {{"forward", 0.3}, {"rendezvous", 9}};
  workers[3].report.phases = {{"forward", 0.3}};
  workers[3].state = "finished";
  EXPECT_EQ(Parsed(figures)["slow_workers"].dump(),
            R"([{"median_seconds":0.119,"own_seconds":0.3,"rank":2}])");
  workers.resize(1);
  EXPECT_EQ(Parsed(figures)["slow_workers"].size(), 0);
}

TEST(StatusJsonTest, NamesWhoIsWaitedForUnlessAnyWorkerWillDo) {
  RunFigures figures = BusyFigures(2);
  figures.status.waited_for = {Rank(0), Rank(1)};
  figures.status.workers[1].activity = "vacant";
  EXPECT_EQ(Parsed(figures)["waited_for"].dump(), "[]");
  figures.status.phase = StatusView::Phase::kWaiting;
  EXPECT_EQ(Parsed(figures)["waited_for"].dump(), "[0,1]");
  figures.status.workers_min = 1;
  EXPECT_EQ(Parsed(figures)["waited_for"].dump(), "[0]");
}

TEST(StatusJsonTest, WhatIsUnknownIsNull) {
  const nlohmann::json status = Parsed(EmptyFigures(2));
  for (const char* name : {"eta_seconds", "train_loss", "test_accuracy",
                           "test_version", "gradient_norm"}) {
    EXPECT_EQ(status.at(name), nullptr) << name;
  }
  EXPECT_EQ(status["workers"][0]["silent_ms"], nullptr);
  EXPECT_EQ(status["checkpoint"]["written_unix_s"], nullptr);
}

TEST(StatusJsonTest, LivesWithNumbersAndTextsThatJsonCannotHold) {
  RunFigures figures = BusyFigures(1);
  figures.status.train_loss = std::numeric_limits<double>::infinity();
  figures.status.workers[0].description = "\xff\xfe bytes";
  const nlohmann::json status = Parsed(figures);
  EXPECT_EQ(status["train_loss"], nullptr);
  EXPECT_THAT(status["workers"][0]["description"].get<std::string>(),
              HasSubstr(" bytes"));
}

TEST(StatusJsonTest, SaysWhatHappenedAndWhen) {
  RunFigures figures = BusyFigures(1);
  figures.now = 1000;
  figures.sums.now = Instant() + absl::Seconds(60);
  figures.sums.events = {{.at = Instant() + absl::Seconds(20),
                          .log = {.severity = LogLevel::kWarning,
                                  .worker = WorkerProcess{.rank = Rank(1)},
                                  .text = "rank 1 is lost"}},
                         {.at = figures.sums.now, .log = {.text = "policy"}}};
  const nlohmann::json events = Parsed(figures)["events"];
  EXPECT_EQ(events.dump(),
            R"([{"rank":1,"severity":"warning","text":"rank 1 is lost",)"
            R"("unix_s":960.0},{"rank":null,"severity":"info",)"
            R"("text":"policy","unix_s":1000.0}])");
}

TEST(ReportPageTest, StandsAloneAndHoldsTheStatus) {
  const RunFigures figures = BusyFigures(2);
  const std::string report = ReportPage(figures);
  EXPECT_THAT(report, Not(HasSubstr("src=\"/")));
  EXPECT_THAT(report, Not(HasSubstr("href=\"/page.css")));
  const std::string begin =
      "<script type=\"application/json\" id=\"saved-status\">";
  const size_t at = report.find(begin) + begin.size();
  const std::string data = report.substr(at, report.find("</script>", at) - at);
  EXPECT_EQ(nlohmann::json::parse(data), Parsed(figures));
}

TEST(ReportPageTest, TextFromOutsideCannotEndTheScript) {
  constexpr char kEnd[] = "</script><!-- DATA --><script>alert(1)</script>";
  RunFigures figures = BusyFigures(1);
  const std::string quiet = ReportPage(figures);
  figures.status.state = kEnd;
  figures.status.workers[0].description = kEnd;
  const std::string report = ReportPage(figures);
  const auto scripts = [](const std::string& text) {
    size_t count = 0;
    for (size_t at = text.find("<script"); at != std::string::npos;
         at = text.find("<script", at + 1)) {
      ++count;
    }
    return count;
  };
  EXPECT_EQ(scripts(report), scripts(quiet));
  EXPECT_THAT(report, Not(HasSubstr(kEnd)));
  EXPECT_THAT(report, HasSubstr("\\u003c/script>\\u003c!-- DATA -->"));
}

TEST(PageRoutesTest, ThePageAndItsFilesAreInTheProgram) {
  const auto figures = std::make_shared<const RunFigures>(BusyFigures(2));
  const auto routes = PageRoutes([figures] { return figures; });
  const HttpResponse page = routes.at("/")();
  EXPECT_THAT(page.content_type, HasSubstr("text/html"));
  EXPECT_THAT(std::string(page.fixed_body), HasSubstr("<noscript>"));
  EXPECT_THAT(std::string(routes.at("/chart.js")().fixed_body),
              HasSubstr("Chart.js v3"));
  EXPECT_THAT(routes.at("/page.css")().content_type, HasSubstr("text/css"));
  EXPECT_THAT(routes.at("/page.js")().content_type,
              HasSubstr("text/javascript"));
  EXPECT_EQ(routes.count("/page.html"), 0);
  // Every script that the page or another script requests.
  for (const EmbeddedFile& file : EmbeddedFiles()) {
    if (file.path == "/chart.js") continue;
    const std::string text(file.content);
    for (size_t at = 0; (at = text.find("from './", at)) != std::string::npos;
         ++at) {
      const size_t begin = at + 7;
      const std::string path =
          text.substr(begin, text.find('\'', begin) - begin);
      EXPECT_EQ(routes.count(path), 1) << path;
    }
  }
}

}  // namespace
}  // namespace cohort
