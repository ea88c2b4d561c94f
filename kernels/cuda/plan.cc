#include "kernels/cuda/plan.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "kernels/cuda/tuning.h"

namespace cohort::kernels::cuda {
namespace {

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A tensor of one channel is one run; so is what lies behind another in the
// memory and is of the same channel.
BatchShape Merged(const BatchShape& shape) {
  if (shape.channels > 1) return shape;
  return {.outer = 1, .channels = 1, .inner = shape.count()};
}

// One piece where there is no counter for each unit and for all of them: so
// many units fill every GPU.
int64_t PiecesOf(int64_t units, int64_t resident, int64_t pieces_max) {
  if (units >= kCounters) return 1;
  return ChoosePieces(units, resident, pieces_max);
}

RunPlan MakeRunPlan(const BatchShape& shape, const Access& access,
                    int64_t resident) {
  RunPlan plan = {.outer = shape.outer,
                  .channels = shape.channels,
                  .inner = shape.inner,
                  .width = access.width,
                  .shift = access.shift};
  plan.edges = access.shift != 0 || shape.inner % access.width != 0;
  plan.vectors = shape.inner / access.width;
  const int64_t total = plan.vectors * plan.outer;
  const int64_t pieces_max =
      std::max<int64_t>(1, total / (kRunThreads * kAccessesPerThreadMin));
  const int64_t pieces = PiecesOf(shape.channels, resident, pieces_max);
  plan.vectors_per_split = std::max<int64_t>(1, CeilDivide(total, pieces));
  plan.splits = std::max<int64_t>(1, CeilDivide(total, plan.vectors_per_split));
  return plan;
}

// Vectors side by side in a tile. Tiles that would fill several waves of blocks
// are wider, so that they fill as few as possible: each block ends with sums
// and an exchange, during which nothing else runs on its multiprocessor.
int64_t TileVectors(int64_t vectors, int64_t rows, int64_t resident) {
  const int64_t narrow =
      std::clamp<int64_t>(kPeriodThreads / rows, kTileVectors, kTileVectorsMax);
  if (CeilDivide(vectors, narrow) <= resident) return narrow;
  const int64_t waves = CeilDivide(vectors, resident * kTileVectorsMax);
  const int64_t wide =
      CeilDivide(CeilDivide(vectors, waves * resident), kTileStep) * kTileStep;
  return std::clamp<int64_t>(wide, narrow, kTileVectorsMax);
}

// Width, lanes and number of the tiles of a row.
void CutRow(PeriodPlan& plan, int64_t resident) {
  const int64_t vectors = plan.row_elements / plan.width;
  const int64_t rows = std::max<int64_t>(1, plan.rows);
  const int64_t wanted = TileVectors(vectors, rows, resident);
  plan.tiles = CeilDivide(vectors, wanted);
  plan.tile_vectors = static_cast<int32_t>(CeilDivide(vectors, plan.tiles));
  // Rounding up may leave the last tile empty.
  plan.tiles = CeilDivide(vectors, plan.tile_vectors);
  plan.lanes = static_cast<int32_t>(
      std::min<int64_t>(kPeriodThreads / plan.tile_vectors, rows));
}

PeriodPlan MakePeriodPlan(const BatchShape& shape, const Access& access,
                          int64_t resident) {
  PeriodPlan plan = {
      .channels = shape.channels, .inner = shape.inner, .width = access.width};
  const int64_t total = shape.count() * shape.channels;
  const int64_t period = shape.channels * shape.inner;
  plan.head = static_cast<int32_t>(
      std::min<int64_t>((access.width - access.shift) % access.width, total));
  const int64_t repeat =
      access.width / std::gcd(period, static_cast<int64_t>(access.width));
  plan.row_elements = repeat * period;
  plan.rows = (total - plan.head) / plan.row_elements;
  plan.rest = (total - plan.head) % plan.row_elements;
  CutRow(plan, resident);
  const int64_t pieces_max =
      std::max<int64_t>(1, plan.rows / (plan.lanes * kAccessesPerThreadMin));
  const int64_t pieces = PiecesOf(plan.tiles, resident, pieces_max);
  // Whole lanes, so that no block ends with some of them idle.
  plan.rows_per_split =
      CeilDivide(CeilDivide(std::max<int64_t>(1, plan.rows), pieces),
                 plan.lanes) *
      plan.lanes;
  plan.splits =
      std::max<int64_t>(1, CeilDivide(plan.rows, plan.rows_per_split));
  const int64_t positions =
      plan.head + static_cast<int64_t>(plan.tile_vectors) * plan.width;
  plan.slots =
      static_cast<int32_t>((positions - 1 + plan.inner - 1) / plan.inner) + 1;
  plan.scattered =
      repeat > 1 || plan.head > 0 || (plan.inner > 1 && plan.tiles > 1);
  return plan;
}

}  // namespace

int64_t ChoosePieces(int64_t units, int64_t resident, int64_t pieces_max) {
  const int64_t limit = std::clamp<int64_t>(
      CeilDivide(kWavesMax * resident, units), 1, pieces_max);
  int64_t best = 1;
  double best_share = 0;
  for (int64_t pieces = 1; pieces <= limit; ++pieces) {
    const int64_t blocks = units * pieces;
    const int64_t slots = CeilDivide(blocks, resident) * resident;
    const double share =
        static_cast<double>(blocks) / static_cast<double>(slots);
    // More waves are only for a last wave that is not full enough.
    if (share < best_share && best_share >= kWaveEfficiency) break;
    if (share > best_share) {
      best = pieces;
      best_share = share;
    }
    if (blocks == slots) break;
  }
  return best;
}

Access WidestAccess(const void* const* tensors, int32_t count,
                    int32_t element_bytes) {
  Access access = {.width = kVectorBytes / element_bytes};
  bool first = true;
  for (int32_t i = 0; i < count; ++i) {
    if (tensors[i] == nullptr) continue;
    const auto shift = static_cast<int32_t>(
        reinterpret_cast<uintptr_t>(tensors[i]) % kVectorBytes / element_bytes);
    if (!first && shift != access.shift) return {};
    access.shift = shift;
    first = false;
  }
  return access;
}

Plan MakePlan(const BatchShape& shape, const Access& access,
              int32_t multiprocessors) {
  const BatchShape merged = Merged(shape);
  Plan plan;
  plan.runs = merged.channels == 1 || merged.inner >= kRunElementsMin;
  if (plan.runs) {
    plan.run = MakeRunPlan(
        merged, access, int64_t{multiprocessors} * kRunBlocksPerMultiprocessor);
  } else {
    plan.period = MakePeriodPlan(
        merged, access,
        int64_t{multiprocessors} * kPeriodBlocksPerMultiprocessor);
  }
  return plan;
}

int64_t PairsOf(const Plan& plan) {
  if (plan.runs) {
    return plan.run.splits > 1 ? plan.run.channels * plan.run.splits : 0;
  }
  // One of each block, and of each tile once its blocks are added.
  return plan.period.tiles * plan.period.slots * (plan.period.splits + 1);
}

int64_t WorkspaceBytes(const BatchShape& shape, int32_t element_bytes,
                       int32_t multiprocessors) {
  if (shape.count() == 0 || shape.channels == 0) return kCounterBytes;
  const int32_t width = kVectorBytes / element_bytes;
  int64_t pairs = PairsOf(MakePlan(shape, {}, multiprocessors));
  for (int32_t shift = 0; shift < width; ++shift) {
    const Access access = {.width = width, .shift = shift};
    pairs = std::max(pairs, PairsOf(MakePlan(shape, access, multiprocessors)));
  }
  return kCounterBytes + pairs * 16;
}

}  // namespace cohort::kernels::cuda
