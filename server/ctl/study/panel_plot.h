#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cohort {

struct PlotPoint {
  // One of the axis' ticks.
  int64_t x = 0;
  double y = 0;
  // Half the width of the interval around y, drawn as a bar.
  std::optional<double> half_width;
};

struct PlotSeries {
  // Series with the same name have the same style in all panels.
  std::string name;
  std::vector<PlotPoint> points;
};

struct PlotPanel {
  std::string title;
  std::vector<PlotSeries> series;
};

// Several charts with common axes and one legend.
struct PanelPlot {
  std::string title;
  // With units, such as "test accuracy (%)".
  std::string x_label;
  std::string y_label;
  // Text below the legend, such as what bars mean; may be empty.
  std::string note;
  // Names of series in the order of their styles, so that several plots show
  // the same series alike; other names follow. Names without points are not in
  // the legend.
  std::vector<std::string> legend;
  // Ticks of the x axis besides those that have points.
  std::vector<int64_t> xs;
  // Row by row.
  std::vector<PlotPanel> panels;
  int32_t columns = 1;
  // Series as bars side by side instead of lines.
  bool bars = false;
  // The axis begins at 0.
  bool from_zero = false;
  // The last tick of the x axis also stands for all larger values.
  bool last_and_more = false;
};

// An SVG image. The x axis has one tick for each x, evenly spaced, because
// values double rather than grow by one. A panel without points says so.
std::string DrawPlot(const PanelPlot& plot);

// Round numbers that cover low to high: at most eight, at least two.
std::vector<double> RoundTicks(double low, double high);

}  // namespace cohort
