#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace cohort {

// `text` with the characters escaped that XML and HTML treat as markup.
std::string EscapeMarkup(absl::string_view text);

// Colour, marker and line of one series. The eight styles differ in colour
// (also for colour-blind readers) and in shape (also in print).
// Source: the palette of Okabe and Ito, "Color Universal Design", 2008; its
//   yellow, weak on white, comes second to last, before black.
struct SeriesStyle {
  absl::string_view color;
  absl::string_view dashes;
  enum class Marker {
    kCircle,
    kSquare,
    kTriangle,
    kDiamond,
    kCross,
    kTriangleDown,
    kPlus,
    kStar,
  } marker = Marker::kCircle;
};

// The style of a series by its place in the legend; from the ninth on they
// repeat.
const SeriesStyle& StyleOf(size_t place);

// An SVG image that is drawn from top to bottom, in pixels.
class SvgCanvas {
 public:
  struct Point {
    double x = 0;
    double y = 0;
  };
  enum class Anchor { kStart, kMiddle, kEnd };
  struct TextLook {
    Anchor anchor = Anchor::kStart;
    double size = 12;
    bool bold = false;
    // Read from bottom to top.
    bool upright = false;
  };

  SvgCanvas(double width, double height, absl::string_view title);

  void Line(const Point& from, const Point& to, absl::string_view color,
            double width = 1);
  void Path(absl::Span<const Point> points, const SeriesStyle& style);
  void Rectangle(const Point& corner, double width, double height,
                 absl::string_view fill);
  void Marker(const Point& center, const SeriesStyle& style);
  void Text(const Point& at, absl::string_view text, const TextLook& look);

  // Returns the image; nothing may be drawn after that.
  std::string Finish();

 private:
  void Shape(absl::Span<const Point> corners, absl::string_view color);

  std::string svg_;
};

}  // namespace cohort
