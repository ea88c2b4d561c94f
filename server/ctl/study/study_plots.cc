#include "server/ctl/study/study_plots.h"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/ctl/study/estimate.h"
#include "server/ctl/study/panel_plot.h"

namespace cohort {
namespace {

constexpr char kImagesLabel[] = "images per worker in a step";
constexpr char kIntervalNote[] =
    "Bars: 95 % confidence interval over the seeds (Student's t).";
// Larger staleness is counted as this value.
constexpr int64_t kStalenessMax = 12;

// A row of panels.
struct PlotRow {
  std::string order;
  int64_t workers = 0;

  std::string Text() const {
    return absl::StrCat(order, ", ", workers,
                        workers == 1 ? " worker" : " workers");
  }
  friend bool operator==(const PlotRow&, const PlotRow&) = default;
};

PlotRow RowOf(const StudyCondition& condition) {
  return {.order = condition.order, .workers = condition.workers};
}

template <typename T>
void AddOnce(const T& value, std::vector<T>& values) {
  if (std::find(values.begin(), values.end(), value) == values.end()) {
    values.push_back(value);
  }
}

// Rows and columns of a plot, in the order of the cells.
struct Grid {
  std::vector<PlotRow> rows;
  std::vector<StudyPolicy> policies;
};

Grid GridOf(const StudySummary& summary, bool stale_only) {
  Grid grid;
  for (const StudyCell& cell : summary.cells) {
    if (stale_only &&
        !summary.staleness.contains({cell.policy, cell.condition})) {
      continue;
    }
    AddOnce(RowOf(cell.condition), grid.rows);
    AddOnce(cell.policy, grid.policies);
  }
  return grid;
}

using ValuesOfCell = std::function<const SeedValues&(const StudyCell&)>;

std::string SeriesNameOf(const std::string& kind) {
  return kind == kOwnBatch ? "batch's own" : absl::StrCat(kind, " statistics");
}

PlotSeries& SeriesNamed(const std::string& name, PlotPanel& panel) {
  for (PlotSeries& series : panel.series) {
    if (series.name == name) return series;
  }
  panel.series.push_back({.name = name});
  return panel.series.back();
}

PlotPanel PanelOf(const StudySummary& summary, const PlotRow& row,
                  const StudyPolicy& policy, const ValuesOfCell& values_of) {
  PlotPanel panel{.title = absl::StrCat(policy.Text(), " | ", row.Text())};
  for (const StudyCell& cell : summary.cells) {
    if (RowOf(cell.condition) != row || cell.policy != policy) continue;
    const SeedValues& values = values_of(cell);
    if (values.empty()) continue;
    const Estimate estimate = EstimateMean(values);
    SeriesNamed(SeriesNameOf(cell.kind), panel)
        .points.push_back({.x = cell.condition.batch_size,
                           .y = estimate.mean,
                           .half_width = estimate.half_width});
  }
  return panel;
}

PanelPlot ByImages(const StudySummary& summary, const ValuesOfCell& values_of) {
  const Grid grid = GridOf(summary, /*stale_only=*/false);
  PanelPlot plot{.x_label = kImagesLabel,
                 .note = kIntervalNote,
                 .columns = static_cast<int32_t>(grid.policies.size())};
  for (const char* kind : {"sync", "async", "chief", "after", kOwnBatch}) {
    plot.legend.push_back(SeriesNameOf(kind));
  }
  for (const StudyCell& cell : summary.cells) {
    AddOnce(cell.condition.batch_size, plot.xs);
  }
  for (const PlotRow& row : grid.rows) {
    for (const StudyPolicy& policy : grid.policies) {
      plot.panels.push_back(PanelOf(summary, row, policy, values_of));
    }
  }
  return plot;
}

StudyPlot MeasurePlot(const StudySummary& summary) {
  PanelPlot plot = ByImages(
      summary,
      [](const StudyCell& cell) -> const auto& { return cell.measure; });
  plot.title = absl::StrCat("Test ", summary.measure, " by images per worker");
  plot.y_label = absl::StrCat("test ", summary.measure, " (%)");
  return {.file = "measure.svg",
          .caption = absl::StrCat("Test ", summary.measure,
                                  " at the end of the run, by what evaluation "
                                  "normalises with."),
          .svg = DrawPlot(plot)};
}

StudyPlot GapPlot(const StudySummary& summary) {
  static const SeedValues& none = *new SeedValues();
  PanelPlot plot = ByImages(
      summary, [](const StudyCell& cell) -> const auto& {
        return cell.kind == kOwnBatch ? none : cell.gap;
      });
  plot.title = "Loss by moving statistics";
  plot.y_label = absl::StrCat("gap in ", summary.measure, " (points)");
  return {.file = "gap.svg",
          .caption = absl::StrCat(
              "Test ", summary.measure,
              " with each batch's own statistics, as in training, minus that "
              "with moving statistics. Above 0: the moving statistics are "
              "worse than those the weights were trained with."),
          .svg = DrawPlot(plot)};
}

std::string TargetText(const StudySummary& summary) {
  std::vector<std::string> texts;
  for (const auto& [order, target] : summary.target) {
    texts.push_back(absl::StrFormat("%.1f %% (%s)", target, order));
  }
  std::string text = texts.front();
  for (size_t i = 1; i < texts.size(); ++i) {
    absl::StrAppend(&text, " and ", texts[i]);
  }
  return text;
}

StudyPlot TimePlot(const StudySummary& summary) {
  PanelPlot plot = ByImages(
      summary, [](const StudyCell& cell) -> const auto& {
        return cell.seconds_to_target;
      });
  plot.title =
      absl::StrCat("Time to ", summary.measure, " ", TargetText(summary));
  plot.y_label = "time to target (s)";
  plot.from_zero = true;
  return {.file = "time.svg",
          .caption = absl::StrCat(
              "Seconds from the start of the run until an evaluation first "
              "reached ",
              TargetText(summary),
              ", where all seeds did. Statistics that are collected after "
              "training have no such time."),
          .svg = DrawPlot(plot)};
}

std::vector<PlotPoint> Shares(const StalenessCounts& counts) {
  int64_t total = 0;
  for (const auto& [versions, pushes] : counts) total += pushes;
  std::map<int64_t, int64_t> shown;
  for (const auto& [versions, pushes] : counts) {
    shown[std::min(versions, kStalenessMax)] += pushes;
  }
  std::vector<PlotPoint> points;
  for (const auto& [versions, pushes] : shown) {
    points.push_back(
        {.x = versions,
         .y = 100 * static_cast<double>(pushes) / static_cast<double>(total)});
  }
  return points;
}

StudyPlot StalenessPlot(const StudySummary& summary) {
  const Grid grid = GridOf(summary, /*stale_only=*/true);
  PanelPlot plot{.title = "How stale pushes were",
                 .x_label =
                     "versions between reading weights and applying "
                     "the push",
                 .y_label = "share of pushes (%)",
                 .columns = static_cast<int32_t>(grid.policies.size()),
                 .bars = true,
                 .from_zero = true};
  for (const PlotRow& row : grid.rows) {
    for (const StudyPolicy& policy : grid.policies) {
      PlotPanel panel{.title = absl::StrCat(policy.Text(), " | ", row.Text())};
      for (const auto& [key, counts] : summary.staleness) {
        if (key.first != policy || RowOf(key.second) != row) continue;
        const int64_t images = key.second.batch_size;
        panel.series.push_back(
            {.name = absl::StrCat(images, images == 1 ? " image" : " images"),
             .points = Shares(counts)});
        plot.last_and_more =
            plot.last_and_more || counts.rbegin()->first > kStalenessMax;
      }
      plot.panels.push_back(std::move(panel));
    }
  }
  return {.file = "staleness.svg",
          .caption =
              "Staleness of pushes when they were applied, over all seeds, by "
              "images per worker.",
          .svg = DrawPlot(plot)};
}

}  // namespace

std::vector<StudyPlot> DrawStudy(const StudySummary& summary) {
  std::vector<StudyPlot> plots = {MeasurePlot(summary), GapPlot(summary),
                                  TimePlot(summary)};
  if (!summary.staleness.empty()) plots.push_back(StalenessPlot(summary));
  return plots;
}

}  // namespace cohort
