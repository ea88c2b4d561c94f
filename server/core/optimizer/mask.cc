#include "server/core/optimizer/mask.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/name_pattern.h"
#include "common/status_macros.h"
#include "server/core/settings/freeze_spec.h"

namespace cohort {
namespace {

using Runs = std::vector<ElementRun>;

absl::Status DoesNotFit(absl::string_view text, absl::string_view what) {
  return absl::FailedPreconditionError(
      absl::StrCat("--freeze: got '", text, "': ", what));
}

std::string ShapeText(const ParameterSpec& parameter) {
  return absl::StrCat(parameter.name, " with shape [",
                      absl::StrJoin(parameter.shape, ","), "]");
}

// [begin, end) of `axis` along `size` elements.
absl::StatusOr<ElementRun> Resolve(absl::string_view text,
                                   const ParameterSpec& parameter, size_t at,
                                   const AxisSlice& axis) {
  const int64_t size = parameter.shape[at];
  const auto from_end = [size](int64_t i) { return i < 0 ? i + size : i; };
  const int64_t begin = from_end(axis.begin.value_or(0));
  const int64_t end =
      axis.is_index ? begin + 1 : from_end(axis.end.value_or(size));
  if (begin >= 0 && begin < end && end <= size) {
    return ElementRun{.offset = begin, .count = end - begin};
  }
  return DoesNotFit(
      text, absl::StrCat("entry ", at + 1, " is empty or out of bounds, want ",
                         axis.is_index ? "an index" : "a range", " within ",
                         -size, " to ", axis.is_index ? size - 1 : size,
                         " for ", ShapeText(parameter)));
}

// Appends the runs of a box of elements, one range an axis, row-major.
void AppendBox(const std::vector<int64_t>& shape,
               const std::vector<ElementRun>& box, Runs& runs) {
  if (shape.empty()) {
    runs.push_back({.offset = 0, .count = 1});
    return;
  }
  // Axes behind `inner` are whole, so that a range of `inner` is one run.
  size_t inner = shape.size();
  int64_t stride = 1;
  while (inner > 0) {
    --inner;
    if (box[inner].count != shape[inner] || inner == 0) break;
    stride *= shape[inner];
  }
  std::vector<int64_t> position(inner, 0);
  for (;;) {
    int64_t offset = 0;
    for (size_t a = 0; a < inner; ++a) {
      offset = offset * shape[a] + box[a].offset + position[a];
    }
    offset = (offset * shape[inner] + box[inner].offset) * stride;
    runs.push_back({.offset = offset, .count = box[inner].count * stride});
    size_t axis = inner;
    while (axis > 0 && ++position[axis - 1] == box[axis - 1].count) {
      position[--axis] = 0;
    }
    if (axis == 0) return;
  }
}

absl::Status AppendSpec(absl::string_view text, const FreezeSpec& spec,
                        const ParameterSpec& parameter, Runs& runs) {
  const size_t axes = parameter.shape.size();
  if (spec.axes.size() > axes) {
    return DoesNotFit(
        text, absl::StrCat(spec.axes.size(), " index entries, want at most ",
                           axes, " for ", ShapeText(parameter)));
  }
  std::vector<ElementRun> box;
  for (size_t a = 0; a < axes; ++a) {
    const AxisSlice axis = a < spec.axes.size() ? spec.axes[a] : AxisSlice{};
    COHORT_ASSIGN_OR_RETURN(const ElementRun range,
                            Resolve(text, parameter, a, axis));
    box.push_back(range);
  }
  AppendBox(parameter.shape, box, runs);
  return absl::OkStatus();
}

// Sorted, and touching ones made one.
Runs Merged(Runs runs) {
  std::sort(runs.begin(), runs.end(),
            [](const ElementRun& a, const ElementRun& b) {
              return a.offset < b.offset;
            });
  Runs merged;
  for (const ElementRun& run : runs) {
    if (!merged.empty() &&
        run.offset <= merged.back().offset + merged.back().count) {
      ElementRun& last = merged.back();
      last.count = std::max(last.count, run.offset + run.count - last.offset);
    } else {
      merged.push_back(run);
    }
  }
  return merged;
}

// The part of a parameter's merged `runs` that lies in `slice`, moved to
// where the slice begins in its partition.
void AppendSlice(const Runs& runs, const Slice& slice, int64_t slice_begin,
                 Runs& out) {
  const auto first = std::partition_point(
      runs.begin(), runs.end(), [&slice](const ElementRun& run) {
        return run.offset + run.count <= slice.offset;
      });
  for (auto run = first; run != runs.end(); ++run) {
    const int64_t begin = std::max(run->offset, slice.offset);
    const int64_t end =
        std::min(run->offset + run->count, slice.offset + slice.count);
    if (begin >= end) return;
    out.push_back(
        {.offset = slice_begin + begin - slice.offset, .count = end - begin});
  }
}

PartitionMask MaskOf(const Partition& partition,
                     const std::vector<Runs>& by_parameter, int64_t& elements) {
  PartitionMask mask;
  Runs runs;
  int64_t slice_begin = 0;
  for (const Slice& slice : partition.slices) {
    Runs frozen;
    AppendSlice(by_parameter[static_cast<size_t>(slice.parameter)], slice,
                slice_begin, frozen);
    for (const ElementRun& run : frozen) elements += run.count;
    mask.whole.push_back(frozen.size() == 1 &&
                         frozen.front().count == slice.count);
    if (!mask.whole.back()) {
      runs.insert(runs.end(), frozen.begin(), frozen.end());
    }
    slice_begin += slice.count;
  }
  if (!runs.empty()) {
    mask.runs = std::make_shared<const Runs>(Merged(std::move(runs)));
  }
  return mask;
}

}  // namespace

absl::StatusOr<SharedMask> MakeMask(const std::vector<std::string>& specs,
                                    const ModelLayout& layout,
                                    const std::vector<Partition>& partitions) {
  if (specs.empty()) return SharedMask();
  std::vector<Runs> by_parameter(layout.parameters.size());
  for (const std::string& text : specs) {
    COHORT_ASSIGN_OR_RETURN(const FreezeSpec spec, ParseFreezeSpec(text));
    bool found = false;
    for (size_t i = 0; i < layout.parameters.size(); ++i) {
      const ParameterSpec& parameter = layout.parameters[i];
      if (!MatchesPattern(spec.pattern, parameter.name)) continue;
      found = true;
      COHORT_RETURN_IF_ERROR(
          AppendSpec(text, spec, parameter, by_parameter[i]));
    }
    if (!found) {
      return DoesNotFit(
          text,
          absl::StrCat("no parameter has this name; the nearest names are ",
                       NearestNames(spec.pattern, layout)));
    }
  }
  for (Runs& runs : by_parameter) runs = Merged(std::move(runs));
  auto mask = std::make_shared<Mask>();
  for (const Partition& partition : partitions) {
    mask->partitions.push_back(MaskOf(partition, by_parameter, mask->elements));
  }
  return mask;
}

absl::StatusOr<SharedMask> MaskFor(const OptimizerOptions& options,
                                   const ModelLayout& layout,
                                   const std::vector<Partition>& partitions) {
  COHORT_RETURN_IF_ERROR(
      CheckPatternsMatch("no_decay", options.no_decay, layout));
  return MakeMask(options.freeze, layout, partitions);
}

}  // namespace cohort
