#include "worker/datasets/synthetic.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "common/permutation.h"

namespace cohort {
namespace {

constexpr uint8_t kRim = kIgnoredInMask;

// The classes besides the ground, which is 0.
enum ShapeKind : uint8_t { kDisc = 1, kSquare, kCross };

ImageSplit BarsSplit(uint64_t seed, int64_t samples, const ImageTable& shape) {
  ImageSplit split{.samples = samples};
  split.pixels.reserve(
      static_cast<size_t>(samples * shape.height * shape.width));
  for (int64_t i = 0; i < samples; ++i) {
    SplitMix64 random(MixSeed(seed, static_cast<uint64_t>(i)));
    const auto label = random.Below(static_cast<uint64_t>(shape.classes));
    const double angle = static_cast<double>(label) * std::numbers::pi /
                         static_cast<double>(shape.classes);
    const double nx = -std::sin(angle);
    const double ny = std::cos(angle);
    const double cx =
        static_cast<double>(shape.width) * (0.35 + 0.3 * random.Uniform());
    const double cy =
        static_cast<double>(shape.height) * (0.35 + 0.3 * random.Uniform());
    for (int64_t y = 0; y < shape.height; ++y) {
      for (int64_t x = 0; x < shape.width; ++x) {
        const double distance = std::abs((static_cast<double>(x) - cx) * nx +
                                         (static_cast<double>(y) - cy) * ny);
        const double bar = distance < 2.5 ? 120.0 : 0.0;
        split.pixels.push_back(static_cast<uint8_t>(
            std::min(255.0, bar + 120.0 * random.Uniform())));
      }
    }
    split.labels.push_back(static_cast<uint16_t>(label));
  }
  return split;
}

struct Shape {
  ShapeKind kind = kDisc;
  double x = 0;
  double y = 0;
  // From the centre to the edge.
  double radius = 0;
  std::array<double, 3> colour = {};
};

// Distance to the edge in pixels: negative inside, positive outside. For a
// cross, a lower bound outside its square.
double DistanceTo(const Shape& shape, int64_t x, int64_t y) {
  const double dx = std::abs(static_cast<double>(x) - shape.x);
  const double dy = std::abs(static_cast<double>(y) - shape.y);
  if (shape.kind == kDisc) return std::sqrt(dx * dx + dy * dy) - shape.radius;
  if (shape.kind == kSquare) return std::max(dx, dy) - shape.radius;
  // A cross.
  const double arm = shape.radius / 3;
  const double upright = std::max(dx - arm, dy - shape.radius);
  const double level = std::max(dx - shape.radius, dy - arm);
  return std::min(upright, level);
}

Shape DrawShape(SplitMix64& random, const ImageTable& table) {
  Shape shape{.kind = static_cast<ShapeKind>(kDisc + random.Below(3))};
  shape.radius = 5 + 5 * random.Uniform();
  shape.x = static_cast<double>(table.width) * random.Uniform();
  shape.y = static_cast<double>(table.height) * random.Uniform();
  for (double& part : shape.colour) part = 90 + 130 * random.Uniform();
  return shape;
}

// Paints one image and its mask; later shapes cover earlier ones.
void PaintShapes(SplitMix64& random, const ImageTable& table, uint8_t* pixels,
                 uint8_t* mask) {
  const int64_t plane = table.height * table.width;
  const double ground = 20 + 40 * random.Uniform();
  std::vector<double> canvas(static_cast<size_t>(3 * plane), ground);
  std::fill_n(mask, plane, uint8_t{0});
  const uint64_t shapes = 2 + random.Below(3);
  for (uint64_t s = 0; s < shapes; ++s) {
    const Shape shape = DrawShape(random, table);
    for (int64_t i = 0; i < plane; ++i) {
      const double distance =
          DistanceTo(shape, i % table.width, i / table.width);
      if (distance >= 1) continue;
      mask[i] = distance < 0 ? uint8_t{shape.kind} : kRim;
      if (distance >= 0) continue;
      for (int64_t c = 0; c < 3; ++c) {
        canvas[static_cast<size_t>(c * plane + i)] =
            shape.colour[static_cast<size_t>(c)];
      }
    }
  }
  for (const double value : canvas) {
    *pixels++ = static_cast<uint8_t>(value + 30 * random.Uniform());
  }
}

ImageSplit ShapesSplit(uint64_t seed, int64_t samples,
                       const ImageTable& table) {
  const int64_t plane = table.height * table.width;
  ImageSplit split{.samples = samples};
  split.pixels.resize(static_cast<size_t>(samples * 3 * plane));
  split.masks.resize(static_cast<size_t>(samples * plane));
  for (int64_t i = 0; i < samples; ++i) {
    SplitMix64 random(MixSeed(seed, static_cast<uint64_t>(i)));
    PaintShapes(random, table, split.pixels.data() + i * 3 * plane,
                split.masks.data() + i * plane);
  }
  return split;
}

}  // namespace

ImageTable SyntheticBars(const SyntheticSize& size) {
  ImageTable table{.name = "synthetic",
                   .classes = 10,
                   .channels = 1,
                   .height = 28,
                   .width = 28};
  table.train = BarsSplit(1, size.train, table);
  table.test = BarsSplit(2, size.test, table);
  return table;
}

ImageTable SyntheticShapes(const SyntheticSize& size) {
  ImageTable table{.name = "synthetic-segmentation",
                   .task = DatasetTask::kSegmentation,
                   .classes = 4,
                   .channels = 3,
                   .height = 48,
                   .width = 48};
  table.train = ShapesSplit(1, size.train, table);
  table.test = ShapesSplit(2, size.test, table);
  return table;
}

}  // namespace cohort
