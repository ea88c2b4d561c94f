// Checks on plots and reports that need no eyes. study_test.py tests on a real
// study that they are well-formed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_split.h"
#include "server/ctl/study/panel_plot.h"
#include "server/ctl/study/report.h"
#include "server/ctl/study/report_table.h"
#include "server/ctl/study/study_plots.h"
#include "server/ctl/study/svg_canvas.h"
#include "tests/ctl/study/example_study.h"

namespace cohort {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::vector<FinishedRun> TwoBatchSizes() {
  return {Finished({.batch_size = 1,
                    .seed = 1,
                    .measure = {{"sync", 90}, {"chief", 70}}}),
          Finished({.batch_size = 1,
                    .seed = 2,
                    .measure = {{"sync", 91}, {"chief", 70.5}}}),
          Finished({.batch_size = 16,
                    .seed = 1,
                    .measure = {{"sync", 92}, {"chief", 91}}}),
          Finished({.batch_size = 16,
                    .seed = 2,
                    .measure = {{"sync", 92}, {"chief", 92.5}}})};
}

StudyReport ReportOf(std::vector<FinishedRun> runs) {
  return {.command = "cohortctl study '<a>'",
          .summary = Summarise(runs, std::nullopt),
          .runs = std::move(runs),
          .left_out = {"nothing & more"}};
}

TEST(RoundTicksTest, AreRoundAndCoverTheValues) {
  EXPECT_THAT(RoundTicks(0, 100), ElementsAre(0, 20, 40, 60, 80, 100));
  EXPECT_THAT(RoundTicks(81, 92), ElementsAre(80, 85, 90, 95));
  EXPECT_THAT(RoundTicks(-3, 4), ElementsAre(-4, -2, 0, 2, 4));
  for (const auto& [low, high] :
       {std::pair{0.0, 0.0}, {5.0, 5.0}, {-1e-9, 0}}) {
    const std::vector<double> ticks = RoundTicks(low, high);
    ASSERT_GE(ticks.size(), 2U);
    EXPECT_LE(ticks.front(), low);
    EXPECT_GT(ticks.back(), high - 1e-12);
  }
}

TEST(StyleTest, SeriesDifferInColourAndInMarker) {
  for (size_t a = 0; a < 8; ++a) {
    for (size_t b = 0; b < a; ++b) {
      EXPECT_NE(StyleOf(a).color, StyleOf(b).color);
      EXPECT_NE(StyleOf(a).marker, StyleOf(b).marker);
    }
  }
}

TEST(DrawStudyTest, AxesAreLabelledWithUnits) {
  const std::vector<StudyPlot> plots =
      DrawStudy(Summarise(TwoBatchSizes(), std::nullopt));
  // Under sync no push is stale.
  ASSERT_EQ(plots.size(), 3U);
  EXPECT_THAT(plots[0].svg, HasSubstr("test accuracy (%)"));
  EXPECT_THAT(plots[1].svg, HasSubstr("gap in accuracy (points)"));
  EXPECT_THAT(plots[2].svg, HasSubstr("time to target (s)"));
  for (const StudyPlot& plot : plots) {
    EXPECT_THAT(plot.svg, HasSubstr("images per worker in a step"));
    EXPECT_THAT(plot.svg, HasSubstr(">chief statistics<"));
    EXPECT_THAT(plot.svg, HasSubstr(">sync, global | shuffled, 2 workers<"));
  }
  EXPECT_THAT(plots[0].svg, HasSubstr(">batch's own<"));
}

TEST(DrawStudyTest, StalenessIsDrawnWhereThereIsAny) {
  std::vector<FinishedRun> runs = TwoBatchSizes();
  runs[0].result.staleness = {{0, 1}, {3, 2}, {40, 1}};
  const std::vector<StudyPlot> plots = DrawStudy(Summarise(runs, std::nullopt));
  ASSERT_EQ(plots.size(), 4U);
  EXPECT_EQ(plots[3].file, "staleness.svg");
  EXPECT_THAT(plots[3].svg, HasSubstr("share of pushes (%)"));
  // All values above are in one bar, and its tick says so.
  EXPECT_THAT(plots[3].svg, HasSubstr(">12+<"));
  // This tick's label would touch its neighbour's.
  EXPECT_THAT(plots[3].svg, HasSubstr(">10<"));
  EXPECT_THAT(plots[3].svg, Not(HasSubstr(">11<")));
}

TEST(ReportTest, TheTableMarksTheBestAndWhatIsWithinNoiseOfIt) {
  const StudySummary summary = Summarise(TwoBatchSizes(), std::nullopt);
  const ReportTable table = MeasureTable(summary, Recommend(summary));
  EXPECT_THAT(table.header, ElementsAre("policy", "statistics",
                                        "shuffled, 2 workers x 1 image",
                                        "shuffled, 2 workers x 16 images"));
  ASSERT_EQ(table.rows.size(), 3U);
  EXPECT_THAT(table.rows[0],
              ElementsAre("sync, global", "sync", "90.5 ± 6.4 (best)",
                          "92.0 ± 0.0 (best)"));
  // 0.2 points behind, one seed above and one below.
  EXPECT_THAT(table.rows[1], ElementsAre("sync, global", "chief", "70.2 ± 3.2",
                                         "91.8 ± 9.5 (=)"));
}

TEST(ReportTest, ARunsKindsTookEquallyLong) {
  const ReportTable table =
      SecondsTable(Summarise(TwoBatchSizes(), std::nullopt));
  ASSERT_EQ(table.rows.size(), 1U);
  EXPECT_THAT(table.rows[0],
              ElementsAre("sync, global", "all", "10 ± 0", "10 ± 0"));
}

TEST(ReportTest, TheCsvHasALineARunAndKind) {
  const StudyReport report = ReportOf(TwoBatchSizes());
  const std::vector<std::string> lines =
      absl::StrSplit(ToCsv(report), '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 1U + 4 * 3);
  // 82.8 is 90 % of 92, the best mean.
  EXPECT_EQ(lines[3],
            "sync,,global,sync,shuffled,2,1,1,accuracy,90.0000,5.0000,10.000,"
            "82.8000,10.000,float32");
}

TEST(ReportTest, ThePageNeedsNoOtherFileAndEscapesWhatItIsGiven) {
  const StudyReport report = ReportOf(TwoBatchSizes());
  const std::vector<StudyPlot> plots = DrawStudy(report.summary);
  const std::string page = ToHtml(report, Recommend(report.summary), plots);
  for (const char* outside : {"src=", "href=", "url(", "<script", "<a>"}) {
    EXPECT_THAT(page, Not(HasSubstr(outside)));
  }
  EXPECT_THAT(page, HasSubstr("cohortctl study '&lt;a&gt;'"));
  EXPECT_THAT(page, HasSubstr("nothing &amp; more"));
  EXPECT_THAT(page, HasSubstr("<svg xmlns"));
}

TEST(ReportTest, MarkdownStatesTheRuleAndNamesThePlots) {
  const StudyReport report = ReportOf(TwoBatchSizes());
  const std::string text =
      ToMarkdown(report, Recommend(report.summary), DrawStudy(report.summary));
  EXPECT_THAT(text, HasSubstr("95 % confidence interval (Student's t) of "
                              "the difference contains 0"));
  EXPECT_THAT(text, HasSubstr("](measure.svg)"));
  EXPECT_THAT(text, HasSubstr("| sync, global | chief | 70.2 ± 3.2 |"));
}

}  // namespace
}  // namespace cohort
