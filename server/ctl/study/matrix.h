#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cohort {

// Evaluation's name for the batch's own statistics. It is not a candidate;
// moving statistics are compared with it.
inline constexpr char kOwnBatch[] = "batch";

// How a run combines its workers' results, in the words of the server's flags.
struct StudyPolicy {
  std::string aggregation;
  // Empty under sync, where no push is stale.
  std::string staleness;
  std::string normalization;
  // How gradients are sent; empty: float32.
  std::string wire;

  // "sync, global", "async (scale), local", "sync, global, bf16".
  std::string Text() const;
  friend auto operator<=>(const StudyPolicy&, const StudyPolicy&) = default;
};

// The conditions under which policies are compared.
struct StudyCondition {
  std::string order;
  int64_t workers = 0;
  // Images of each worker in a step.
  int64_t batch_size = 0;

  // "shuffled, 4 workers x 2 images".
  std::string Text() const;
  friend auto operator<=>(const StudyCondition&,
                          const StudyCondition&) = default;
};

// One run: a server and its workers. One run keeps all kinds of statistics side
// by side, because they never affect the weights.
struct StudyRun {
  StudyPolicy policy;
  StudyCondition condition;
  int64_t seed = 0;
  // Without kOwnBatch, which every run evaluates.
  std::vector<std::string> kinds;

  // Unique within a study except for the kinds, and usable as a file name:
  // "sync-global-shuffled-w4-b2-s1", "sync-global-bf16-shuffled-w4-b2-s1".
  std::string Name() const;
};

// The values to compare: every value with every other.
struct StudyAxes {
  std::vector<std::string> aggregation = {"sync", "async"};
  std::vector<std::string> normalization = {"global", "local"};
  std::vector<std::string> kinds = {"sync", "async", "chief", "after"};
  std::vector<std::string> staleness = {"keep"};
  std::vector<std::string> wire = {"float32"};
  std::vector<std::string> order = {"shuffled"};
  std::vector<int64_t> batch_size = {1, 2, 4, 16};
  std::vector<int64_t> workers = {4};
  std::vector<int64_t> seed = {1, 2, 3};
};

struct StudyPlan {
  // Ordered by seed, so that a study that is stopped early has compared
  // everything with the seeds that it reached.
  std::vector<StudyRun> runs;
  // Sentences that say which requested runs are left out, and why. Each once.
  std::vector<std::string> left_out;
};

// The runs for these axes. Invalid runs are left out (global normalisation, or
// sync statistics, without sync aggregation), and so are duplicates (staleness
// rules under sync; with one worker, global and local normalisation under
// sync).
StudyPlan PlanStudy(const StudyAxes& axes);

// Parse lists separated by commas.
// Errors: InvalidArgument naming the flag and the value: not one of `known`,
//   not a number of at least 1, a duplicate, or an empty list.
absl::StatusOr<std::vector<std::string>> ParseWords(
    absl::string_view flag, absl::string_view text,
    const std::vector<std::string>& known);
absl::StatusOr<std::vector<int64_t>> ParseNumbers(absl::string_view flag,
                                                  absl::string_view text);

}  // namespace cohort
