#include "server/ctl/study/panel_plot.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/ctl/study/svg_canvas.h"

namespace cohort {
namespace {

using Point = SvgCanvas::Point;
using Anchor = SvgCanvas::Anchor;

constexpr double kPanelWidth = 250;
constexpr double kPanelHeight = 170;
constexpr double kGap = 16;
constexpr double kPanelTitle = 22;
constexpr double kLeft = 66;
constexpr double kRight = 16;
constexpr double kTitleHeight = 30;
constexpr double kLegendRow = 20;
constexpr double kXAxis = 46;
constexpr double kLegendEntry = 150;
constexpr char kAxisColor[] = "#555555";
constexpr char kGridColor[] = "#dddddd";
// Width of a digit below the x axis.
constexpr double kTickCharacter = 6;
// Share of a tick's width over which series are spread.
constexpr double kSpread = 0.45;
constexpr double kBarSpread = 0.8;

// Layout shared by all panels.
struct Layout {
  std::vector<std::string> names;
  // Indices of the names that have points.
  std::set<size_t> shown;
  std::vector<int64_t> xs;
  std::vector<double> y_ticks;
  int32_t rows = 1;
  int32_t columns = 1;
  double width = 0;
  double height = 0;
  double top = 0;
  double row_height = 0;
};

size_t PlaceOf(const std::string& name, const Layout& layout) {
  return static_cast<size_t>(
      std::find(layout.names.begin(), layout.names.end(), name) -
      layout.names.begin());
}

void CollectAxes(const PanelPlot& plot, Layout& layout) {
  std::set<int64_t> xs(plot.xs.begin(), plot.xs.end());
  layout.names = plot.legend;
  std::optional<double> low;
  std::optional<double> high;
  for (const PlotPanel& panel : plot.panels) {
    for (const PlotSeries& series : panel.series) {
      if (std::find(layout.names.begin(), layout.names.end(), series.name) ==
          layout.names.end()) {
        layout.names.push_back(series.name);
      }
      if (!series.points.empty())
        layout.shown.insert(PlaceOf(series.name, layout));
      for (const PlotPoint& point : series.points) {
        const double half = point.half_width.value_or(0);
        xs.insert(point.x);
        low = std::min(low.value_or(point.y), point.y - half);
        high = std::max(high.value_or(point.y), point.y + half);
      }
    }
  }
  layout.xs.assign(xs.begin(), xs.end());
  if (plot.from_zero) low = 0;
  layout.y_ticks = RoundTicks(low.value_or(0), high.value_or(1));
}

int32_t LegendRows(const Layout& layout) {
  const auto fit = std::max<int32_t>(
      1, static_cast<int32_t>((layout.width - kLeft) / kLegendEntry));
  return (static_cast<int32_t>(layout.shown.size()) + fit - 1) / fit;
}

Layout LayOut(const PanelPlot& plot) {
  Layout layout{.columns = std::max(plot.columns, 1)};
  CollectAxes(plot, layout);
  const auto panels = static_cast<int32_t>(plot.panels.size());
  layout.rows = (panels + layout.columns - 1) / layout.columns;
  layout.width = kLeft + kRight + layout.columns * (kPanelWidth + kGap) - kGap;
  // Wide enough for the title even with few panels.
  layout.width = std::max(layout.width, 560.0);
  layout.top = kTitleHeight + kLegendRow * LegendRows(layout) +
               (plot.note.empty() ? 0 : kLegendRow) + 8;
  layout.row_height = kPanelTitle + kPanelHeight + kGap;
  layout.height = layout.top + layout.rows * layout.row_height + kXAxis;
  return layout;
}

void DrawHead(const PanelPlot& plot, const Layout& layout, SvgCanvas& canvas) {
  canvas.Text({kLeft, 20}, plot.title, {.size = 15, .bold = true});
  double x = kLeft;
  double y = kTitleHeight + 12;
  for (const size_t i : layout.shown) {
    if (x + kLegendEntry > layout.width && x > kLeft) {
      x = kLeft;
      y += kLegendRow;
    }
    const SeriesStyle& style = StyleOf(i);
    if (plot.bars) {
      canvas.Rectangle({x, y - 9}, 22, 10, style.color);
    } else {
      const std::vector<Point> line = {{x, y - 4}, {x + 22, y - 4}};
      canvas.Path(line, style);
      canvas.Marker({x + 11, y - 4}, style);
    }
    canvas.Text({x + 28, y}, layout.names[i], {});
    x += kLegendEntry;
  }
  if (plot.note.empty()) return;
  canvas.Text({kLeft, y + kLegendRow - 2}, plot.note, {.size = 11});
}

// Position and scales of one panel.
class PanelFrame {
 public:
  PanelFrame(const Layout& layout, int32_t index)
      : layout_(layout),
        left_(kLeft + index % layout.columns * (kPanelWidth + kGap)),
        top_(layout.top +
             static_cast<double>(index / layout.columns) * layout.row_height +
             kPanelTitle),
        first_column_(index % layout.columns == 0) {}

  double left() const { return left_; }
  double top() const { return top_; }
  double bottom() const { return top_ + kPanelHeight; }
  bool first_column() const { return first_column_; }
  double room() const {
    return kPanelWidth /
           static_cast<double>(std::max<size_t>(layout_.xs.size(), 1));
  }

  // The middle of a tick's width.
  double X(int64_t value) const {
    const auto at =
        std::lower_bound(layout_.xs.begin(), layout_.xs.end(), value) -
        layout_.xs.begin();
    return left_ + (static_cast<double>(at) + 0.5) * room();
  }
  double Y(double value) const {
    const double low = layout_.y_ticks.front();
    const double high = layout_.y_ticks.back();
    return bottom() - (value - low) / (high - low) * kPanelHeight;
  }
  // Distance of the series at `place` from the middle, so that intervals do not
  // cover each other.
  double Offset(size_t place, double spread) const {
    const auto count = static_cast<double>(layout_.names.size());
    return ((static_cast<double>(place) + 0.5) / count - 0.5) * spread * room();
  }

 private:
  const Layout& layout_;
  double left_;
  double top_;
  bool first_column_;
};

std::string TickText(double value, double step) {
  const int decimals =
      std::max(0, static_cast<int>(-std::floor(std::log10(step) + 1e-9)));
  return absl::StrFormat("%.*f", decimals, value);
}

void DrawAxes(const PanelPlot& plot, const Layout& layout,
              const PanelFrame& frame, SvgCanvas& canvas) {
  const double right = frame.left() + kPanelWidth;
  const std::vector<double>& ticks = layout.y_ticks;
  const double step = ticks[1] - ticks[0];
  for (const double tick : ticks) {
    const double y = frame.Y(tick);
    const bool zero = std::abs(tick) < step / 1000;
    canvas.Line({frame.left(), y}, {right, y}, zero ? "#888888" : kGridColor);
    if (!frame.first_column()) continue;
    canvas.Text({frame.left() - 6, y + 4}, TickText(tick, step),
                {.anchor = Anchor::kEnd, .size = 11});
  }
  std::vector<std::string> labels;
  size_t longest = 0;
  for (const int64_t x : layout.xs) {
    const bool more = plot.last_and_more && x == layout.xs.back();
    labels.push_back(absl::StrCat(x, more ? "+" : ""));
    longest = std::max(longest, labels.back().size());
  }
  // As many labels as fit without touching, always including the last.
  const auto stride = static_cast<size_t>(std::ceil(
      (static_cast<double>(longest) + 1) * kTickCharacter / frame.room()));
  for (size_t i = 0; i < labels.size(); ++i) {
    const double x = frame.X(layout.xs[i]);
    canvas.Line({x, frame.bottom()}, {x, frame.bottom() + 4}, kAxisColor);
    if ((labels.size() - 1 - i) % stride != 0) continue;
    canvas.Text({x, frame.bottom() + 16}, labels[i],
                {.anchor = Anchor::kMiddle, .size = 11});
  }
  canvas.Line({frame.left(), frame.top()}, {frame.left(), frame.bottom()},
              kAxisColor);
  canvas.Line({frame.left(), frame.bottom()}, {right, frame.bottom()},
              kAxisColor);
}

void DrawLines(const PlotSeries& series, size_t place, const PanelFrame& frame,
               SvgCanvas& canvas) {
  const SeriesStyle& style = StyleOf(place);
  const double offset = frame.Offset(place, kSpread);
  std::vector<Point> points;
  for (const PlotPoint& point : series.points) {
    const double x = frame.X(point.x) + offset;
    points.push_back({.x = x, .y = frame.Y(point.y)});
    if (!point.half_width.has_value()) continue;
    // An interval may extend below an axis that begins at 0.
    const double top =
        std::max(frame.Y(point.y + *point.half_width), frame.top());
    const double bottom =
        std::min(frame.Y(point.y - *point.half_width), frame.bottom());
    canvas.Line({x, top}, {x, bottom}, style.color);
    canvas.Line({x - 3, top}, {x + 3, top}, style.color);
    canvas.Line({x - 3, bottom}, {x + 3, bottom}, style.color);
  }
  canvas.Path(points, style);
  for (const Point& point : points) canvas.Marker(point, style);
}

void DrawBars(const PlotSeries& series, const Layout& layout,
              const PanelFrame& frame, SvgCanvas& canvas) {
  const size_t place = PlaceOf(series.name, layout);
  const double width =
      kBarSpread * frame.room() / static_cast<double>(layout.names.size());
  for (const PlotPoint& point : series.points) {
    const double middle = frame.X(point.x) + frame.Offset(place, kBarSpread);
    const double top = frame.Y(point.y);
    canvas.Rectangle({middle - width / 2, top}, width * 0.92,
                     std::max(frame.Y(0) - top, 0.0), StyleOf(place).color);
  }
}

void DrawPanel(const PanelPlot& plot, const Layout& layout, int32_t index,
               SvgCanvas& canvas) {
  const PanelFrame frame(layout, index);
  const PlotPanel& panel = plot.panels[static_cast<size_t>(index)];
  canvas.Text({frame.left(), frame.top() - 7}, panel.title,
              {.size = 11, .bold = true});
  DrawAxes(plot, layout, frame, canvas);
  bool any = false;
  for (const PlotSeries& series : panel.series) {
    any = any || !series.points.empty();
    if (plot.bars) {
      DrawBars(series, layout, frame, canvas);
    } else {
      DrawLines(series, PlaceOf(series.name, layout), frame, canvas);
    }
  }
  if (any) return;
  canvas.Text({frame.left() + kPanelWidth / 2, frame.top() + kPanelHeight / 2},
              "no values", {.anchor = Anchor::kMiddle});
}

}  // namespace

std::vector<double> RoundTicks(double low, double high) {
  constexpr double kTicks = 6;
  if (!(high > low)) {
    const double room = std::max(1e-3, 0.05 * std::abs(high));
    low -= low == 0 ? 0 : room;
    high += room;
  }
  const double raw = (high - low) / (kTicks - 1);
  const double decade = std::pow(10, std::floor(std::log10(raw)));
  double step = 10 * decade;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * decade >= raw) {
      step = factor * decade;
      break;
    }
  }
  std::vector<double> ticks;
  const double first = std::floor(low / step + 1e-9);
  const double last = std::ceil(high / step - 1e-9);
  for (double i = first; i <= last; ++i) ticks.push_back(i * step);
  return ticks;
}

std::string DrawPlot(const PanelPlot& plot) {
  const Layout layout = LayOut(plot);
  SvgCanvas canvas(layout.width, layout.height, plot.title);
  DrawHead(plot, layout, canvas);
  for (int32_t i = 0; i < static_cast<int32_t>(plot.panels.size()); ++i) {
    DrawPanel(plot, layout, i, canvas);
  }
  const double panels_width = layout.columns * (kPanelWidth + kGap) - kGap;
  canvas.Text({kLeft + panels_width / 2, layout.height - 12}, plot.x_label,
              {.anchor = Anchor::kMiddle});
  const double middle =
      layout.top + (layout.rows * layout.row_height + kPanelTitle) / 2;
  canvas.Text({16, middle}, plot.y_label,
              {.anchor = Anchor::kMiddle, .upright = true});
  return canvas.Finish();
}

}  // namespace cohort
