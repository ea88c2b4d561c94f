#include "server/ctl/study/svg_canvas.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace cohort {
namespace {

using Marker = SeriesStyle::Marker;

constexpr double kMarkerRadius = 4;

// Corners of the markers that are polygons or lines, in units of the radius.
std::vector<SvgCanvas::Point> CornersOf(Marker marker) {
  switch (marker) {
    case Marker::kSquare:
      return {{-0.9, -0.9}, {0.9, -0.9}, {0.9, 0.9}, {-0.9, 0.9}};
    case Marker::kTriangle:
      return {{0, -1.2}, {1.1, 0.8}, {-1.1, 0.8}};
    case Marker::kTriangleDown:
      return {{0, 1.2}, {1.1, -0.8}, {-1.1, -0.8}};
    case Marker::kDiamond:
      return {{0, -1.3}, {1.3, 0}, {0, 1.3}, {-1.3, 0}};
    case Marker::kStar:
      return {{0, -1.5}, {0.35, -0.35}, {1.5, 0},  {0.35, 0.35},
              {0, 1.5},  {-0.35, 0.35}, {-1.5, 0}, {-0.35, -0.35}};
    default:
      return {};
  }
}

const char* NameOf(SvgCanvas::Anchor anchor) {
  switch (anchor) {
    case SvgCanvas::Anchor::kStart:
      return "start";
    case SvgCanvas::Anchor::kMiddle:
      return "middle";
    case SvgCanvas::Anchor::kEnd:
      return "end";
  }
  return "";
}

}  // namespace

std::string EscapeMarkup(absl::string_view text) {
  return absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

const SeriesStyle& StyleOf(size_t place) {
  static constexpr std::array<SeriesStyle, 8> kStyles = {
      {{"#0072B2", "", Marker::kCircle},
       {"#E69F00", "", Marker::kSquare},
       {"#D55E00", "", Marker::kTriangle},
       {"#009E73", "", Marker::kDiamond},
       {"#CC79A7", "5 3", Marker::kCross},
       {"#56B4E9", "5 3", Marker::kTriangleDown},
       {"#000000", "2 3", Marker::kPlus},
       {"#F0E442", "2 3", Marker::kStar}}};
  return kStyles[place % kStyles.size()];
}

SvgCanvas::SvgCanvas(double width, double height, absl::string_view title) {
  absl::StrAppendFormat(
      &svg_,
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" "
      "height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" role=\"img\" "
      "font-family=\"Helvetica, Arial, sans-serif\">\n<title>%s</title>\n",
      width, height, width, height, EscapeMarkup(title));
  Rectangle({}, width, height, "#ffffff");
}

void SvgCanvas::Line(const Point& from, const Point& to,
                     absl::string_view color, double width) {
  absl::StrAppendFormat(&svg_,
                        "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" "
                        "y2=\"%.1f\" stroke=\"%s\" stroke-width=\"%.1f\"/>\n",
                        from.x, from.y, to.x, to.y, color, width);
}

void SvgCanvas::Path(absl::Span<const Point> points, const SeriesStyle& style) {
  if (points.size() < 2) return;
  absl::StrAppend(&svg_, "<polyline points=\"");
  for (const Point& point : points) {
    absl::StrAppendFormat(&svg_, "%.1f,%.1f ", point.x, point.y);
  }
  absl::StrAppendFormat(&svg_,
                        "\" fill=\"none\" stroke=\"%s\" stroke-width=\"1.6\"",
                        style.color);
  if (!style.dashes.empty()) {
    absl::StrAppendFormat(&svg_, " stroke-dasharray=\"%s\"", style.dashes);
  }
  absl::StrAppend(&svg_, "/>\n");
}

void SvgCanvas::Rectangle(const Point& corner, double width, double height,
                          absl::string_view fill) {
  absl::StrAppendFormat(&svg_,
                        "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" "
                        "height=\"%.1f\" fill=\"%s\"/>\n",
                        corner.x, corner.y, width, height, fill);
}

void SvgCanvas::Shape(absl::Span<const Point> corners,
                      absl::string_view color) {
  absl::StrAppend(&svg_, "<polygon points=\"");
  for (const Point& corner : corners) {
    absl::StrAppendFormat(&svg_, "%.1f,%.1f ", corner.x, corner.y);
  }
  absl::StrAppendFormat(&svg_, "\" fill=\"%s\"/>\n", color);
}

void SvgCanvas::Marker(const Point& center, const SeriesStyle& style) {
  const double r = kMarkerRadius;
  switch (style.marker) {
    case SeriesStyle::Marker::kCircle:
      absl::StrAppendFormat(
          &svg_, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" fill=\"%s\"/>\n",
          center.x, center.y, r, style.color);
      return;
    case SeriesStyle::Marker::kCross:
      Line({center.x - r, center.y - r}, {center.x + r, center.y + r},
           style.color, 2);
      Line({center.x - r, center.y + r}, {center.x + r, center.y - r},
           style.color, 2);
      return;
    case SeriesStyle::Marker::kPlus:
      Line({center.x - r, center.y}, {center.x + r, center.y}, style.color, 2);
      Line({center.x, center.y - r}, {center.x, center.y + r}, style.color, 2);
      return;
    default:
      break;
  }
  std::vector<Point> corners = CornersOf(style.marker);
  for (Point& corner : corners) {
    corner = {.x = center.x + r * corner.x, .y = center.y + r * corner.y};
  }
  Shape(corners, style.color);
}

void SvgCanvas::Text(const Point& at, absl::string_view text,
                     const TextLook& look) {
  absl::StrAppendFormat(&svg_,
                        "<text x=\"%.1f\" y=\"%.1f\" font-size=\"%.0f\" "
                        "text-anchor=\"%s\" fill=\"#222222\"",
                        at.x, at.y, look.size, NameOf(look.anchor));
  if (look.bold) absl::StrAppend(&svg_, " font-weight=\"bold\"");
  if (look.upright) {
    absl::StrAppendFormat(&svg_, " transform=\"rotate(-90 %.1f %.1f)\"", at.x,
                          at.y);
  }
  absl::StrAppendFormat(&svg_, ">%s</text>\n", EscapeMarkup(text));
}

std::string SvgCanvas::Finish() {
  absl::StrAppend(&svg_, "</svg>\n");
  return std::move(svg_);
}

}  // namespace cohort
