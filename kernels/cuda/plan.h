#pragma once

#include <cstdint>

#include "kernels/batch_norm_args.h"

// How a batch-norm tensor is cut into blocks and threads. Plain functions of
// the shape, the alignment and the number of multiprocessors: so the order of
// all additions is fixed on one model of GPU.
namespace cohort::kernels::cuda {

// [outer][channels][inner] where runs of one channel are long. A block reads
// one channel, vector after vector; its threads take turns.
//
// A run's vectors are the whole ones between its first aligned element and its
// end. Where runs do not start and end at a boundary (`edges`) the elements
// before and behind are taken one by one.
struct RunPlan {
  int64_t outer = 0;
  int64_t channels = 0;
  int64_t inner = 0;
  // Elements of an access.
  int32_t width = 1;
  // Elements between the boundary at or before the tensor and the tensor.
  int32_t shift = 0;
  bool edges = false;
  // Vectors of a run that starts at a boundary; others may have one fewer.
  int64_t vectors = 0;
  // Blocks of a channel, and vectors of each.
  int64_t splits = 1;
  int64_t vectors_per_split = 0;
};

// Everything else: short runs, channels_last among them (runs of one). The
// channels repeat after a period of channels*inner elements. A row is as many
// periods as fill whole vectors, so that a column of vectors has the same
// channels in every row, and a thread keeps what belongs to them in registers.
//
// Before the rows lies a head of less than a vector, up to the first boundary;
// behind them an incomplete row, the rest. Positions count from the first
// element of the tensor, modulo a row; a run is position / inner and belongs
// to channel run % channels.
struct PeriodPlan {
  int64_t channels = 0;
  int64_t inner = 0;
  int32_t width = 1;
  int32_t head = 0;
  // Elements, a multiple of `width`.
  int64_t row_elements = 0;
  int64_t rows = 0;
  int64_t rest = 0;
  // A tile is some vectors of a row and a block's share of the rows; `lanes`
  // rows of it are read side by side.
  int32_t tile_vectors = 1;
  int64_t tiles = 1;
  int32_t lanes = 1;
  int64_t splits = 1;
  int64_t rows_per_split = 0;
  // Runs that a tile touches at most.
  int32_t slots = 0;
  // Some channel has parts in several tiles or several times in one.
  bool scattered = false;
};

struct Plan {
  bool runs = false;
  RunPlan run;
  PeriodPlan period;

  int64_t blocks() const {
    return runs ? run.channels * run.splits : period.tiles * period.splits;
  }
};

// Where the tensors of a call lie.
struct Access {
  // Elements of an access; 1 if the tensors do not lie alike.
  int32_t width = 1;
  // Elements between the boundary before them and each of them.
  int32_t shift = 0;
};

// The widest access that all of the tensors allow. Null ones are skipped.
// Requires addresses that are multiples of `element_bytes`.
Access WidestAccess(const void* const* tensors, int32_t count,
                    int32_t element_bytes);

// Requires count() > 0 and channels > 0.
Plan MakePlan(const BatchShape& shape, const Access& access,
              int32_t multiprocessors);

// -- Workspace of the kernels that sum: counters, then pairs of sums.

// Counters lie at the start, whatever the shape, since they have to be zero
// between calls.
inline constexpr int64_t kCounters = 8192;
inline constexpr int64_t kCounterBytes = kCounters * 4;

// Pairs of sums that the blocks of a plan hand over.
int64_t PairsOf(const Plan& plan);

// Enough for every alignment of the tensors of such a shape.
int64_t WorkspaceBytes(const BatchShape& shape, int32_t element_bytes,
                       int32_t multiprocessors);

// Pieces for each of `units` so that the blocks fill the waves that `resident`
// blocks make: as few waves as leave the last one well filled, and as many
// blocks as those have room for; else the fullest. At most `pieces_max`.
int64_t ChoosePieces(int64_t units, int64_t resident, int64_t pieces_max);

}  // namespace cohort::kernels::cuda
