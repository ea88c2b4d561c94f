#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "absl/functional/function_ref.h"
#include "kernels/backend.h"

namespace cohort::kernels::cpu {

// A part of a grid: the cells of some rows and columns. One task.
struct Tile {
  int64_t row_begin = 0;
  int64_t row_end = 0;
  int64_t column_begin = 0;
  int64_t column_end = 0;
  // End of the tile's columns in the incomplete row below the grid;
  // column_begin where it has none.
  int64_t rest_end = 0;
  // Which row of tiles it belongs to.
  int64_t row_tile = 0;
};

// Elements [begin, begin + count), all of one channel.
struct Run {
  int64_t begin = 0;
  int64_t count = 0;
};

// A tensor as rows and columns of cells, every column being of one channel,
// and how they are cut into tiles.
//
// Where `inner` is long, a cell is a run of `inner` elements (or a piece of a
// very long one), which is vectorised along itself, and a column is a channel.
// Where it is short (1 for channels_last), a cell is one element, and rows are
// vectorised across columns: a row is a period C*inner after which the
// channels repeat, itself repeated until vectors fill it, so that 3 or 65
// channels leave no elements over in each row.
//
// All of it depends on the shape and on the width of a vector only.
struct Grid {
  // True: cells are runs.
  bool runs = false;
  int64_t rows = 0;
  int64_t columns = 0;
  // Elements of the incomplete row below the grid.
  int64_t rest = 0;
  // Elements between two outer indices, of a run, and of a piece of one.
  int64_t sample = 0;
  int64_t run = 1;
  int64_t piece = 1;
  int64_t tile_rows = 1;
  int64_t tile_columns = 1;

  int64_t pieces() const { return (run + piece - 1) / piece; }
  int64_t row_tiles() const {
    return std::max<int64_t>(1, (rows + tile_rows - 1) / tile_rows);
  }
  int64_t column_tiles() const {
    return (columns + tile_columns - 1) / tile_columns;
  }
  int64_t tiles() const { return row_tiles() * column_tiles(); }

  // Ascending in the order of the memory.
  Tile TileAt(int64_t index) const {
    Tile tile;
    tile.row_tile = index / column_tiles();
    tile.row_begin = tile.row_tile * tile_rows;
    tile.row_end = std::min(tile.row_begin + tile_rows, rows);
    tile.column_begin = index % column_tiles() * tile_columns;
    tile.column_end = std::min(tile.column_begin + tile_columns, columns);
    const bool last = tile.row_tile == row_tiles() - 1;
    tile.rest_end =
        std::clamp(last ? rest : 0, tile.column_begin, tile.column_end);
    return tile;
  }

  // The cell of a grid of runs.
  Run RunAt(int64_t row, int64_t column) const {
    const int64_t from = row % pieces() * piece;
    return {.begin = row / pieces() * sample + column * run + from,
            .count = std::min(piece, run - from)};
  }
};

// Elements of a tile, about: some 20 us of work.
inline constexpr int64_t kTileElements = 1 << 15;
// Columns of a tile that is vectorised across them: its sums and factors stay
// in the second-level cache.
inline constexpr int64_t kTileColumnsMax = 2048;
// Elements that a tile sums up in one column at least, so that the tiles'
// sums are little beside the tensor.
inline constexpr int64_t kColumnElementsMin = 256;
// Elements a run must have, in vectors, to be vectorised along itself.
inline constexpr int64_t kRunVectorsMin = 8;
// Vectors of a repeated period at least, and its elements at most.
inline constexpr int64_t kPeriodVectorsMin = 4;
inline constexpr int64_t kRepeatedPeriodMax = 1024;
// Beyond this period, short runs are cheaper than tables.
inline constexpr int64_t kShortRunPeriodMax = 8192;

inline Grid GridOfRuns(const BatchShape& shape) {
  Grid grid = {.runs = true,
               .columns = shape.channels,
               .sample = shape.channels * shape.inner,
               .run = shape.inner,
               .piece = std::min(shape.inner, kTileElements)};
  grid.rows = shape.outer * grid.pieces();
  grid.tile_columns =
      std::clamp<int64_t>(kTileElements / grid.piece, 1, grid.columns);
  const int64_t row = grid.tile_columns * grid.piece;
  grid.tile_rows = std::max(kTileElements / row,
                            (kColumnElementsMin + grid.piece - 1) / grid.piece);
  return grid;
}

// Requires count() > 0 and channels > 0. `lanes`: elements of a vector.
inline Grid GridOf(const BatchShape& shape, int64_t lanes) {
  const int64_t period = shape.channels * shape.inner;
  const bool short_runs = shape.inner < kRunVectorsMin * lanes;
  if (shape.inner != 1 && (!short_runs || period > kShortRunPeriodMax)) {
    return GridOfRuns(shape);
  }
  const int64_t whole_vectors = period * (lanes / std::gcd(period, lanes));
  const int64_t wanted = kPeriodVectorsMin * lanes;
  const int64_t repeats = (wanted + whole_vectors - 1) / whole_vectors;
  const int64_t repeated = whole_vectors * repeats;
  Grid grid;
  grid.columns = repeated <= kRepeatedPeriodMax ? repeated : period;
  const int64_t elements = shape.outer * period;
  grid.rows = elements / grid.columns;
  grid.rest = elements % grid.columns;
  grid.tile_columns = std::min(grid.columns, kTileColumnsMax);
  grid.tile_rows =
      std::max(kTileElements / grid.tile_columns, kColumnElementsMin);
  return grid;
}

// Calls f(column, channel) for every column, ascending.
template <typename F>
void ForEachColumn(const Grid& grid, const BatchShape& shape, F f) {
  const int64_t width = grid.runs ? 1 : shape.inner;
  int64_t column = 0;
  while (column < grid.columns) {
    for (int64_t channel = 0; channel < shape.channels; ++channel) {
      for (int64_t i = 0; i < width; ++i) f(column++, channel);
    }
  }
}

// Some float64 fields of every column. Those of `lanes` columns lie side by
// side, field after field, so that each loads as a vector and all of them are
// one stream: as separate tables they would share cache sets with each
// other and with the rows of a tensor of 1024 or 2048 channels.
class ColumnTable {
 public:
  // `lanes`: a power of two. Runs want one value of each field, not vectors.
  ColumnTable(const Grid& grid, int64_t fields, int64_t lanes)
      : fields_(fields),
        lanes_(grid.runs ? 1 : lanes),
        values_(static_cast<size_t>((grid.columns + lanes_ - 1) / lanes_ *
                                    lanes_ * fields)) {}

  // The fields of the vector of columns at `column`, a multiple of the lanes.
  double* Vector(int64_t column) { return values_.data() + column * fields_; }
  const double* Vector(int64_t column) const {
    return values_.data() + column * fields_;
  }

  double& At(int64_t column, int64_t field) {
    return values_[IndexOf(column, field)];
  }
  double At(int64_t column, int64_t field) const {
    return values_[IndexOf(column, field)];
  }

 private:
  size_t IndexOf(int64_t column, int64_t field) const {
    const int64_t lane = column & (lanes_ - 1);
    return static_cast<size_t>((column - lane) * fields_ + field * lanes_ +
                               lane);
  }

  int64_t fields_;
  int64_t lanes_;
  std::vector<double> values_;
};

// Calls `run` with ranges of the grid's tiles.
inline void ForTiles(const Grid& grid, const ParallelFor& parallel_for,
                     absl::FunctionRef<void(int64_t, int64_t)> run) {
  if (parallel_for == nullptr || grid.tiles() == 1) {
    run(0, grid.tiles());
  } else {
    parallel_for(grid.tiles(), run);
  }
}

}  // namespace cohort::kernels::cpu
