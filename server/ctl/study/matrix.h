#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cohort {

// What evaluation calls the batch's own statistics: no candidate, but what
// moving statistics are compared with.
inline constexpr char kOwnBatch[] = "batch";

// How a run combines what its workers compute; words are those of the server's
// flags.
struct StudyPolicy {
  std::string aggregation;
  // Empty under sync, where nothing is stale.
  std::string staleness;
  std::string normalization;

  // "sync, global", "async (scale), local".
  std::string Text() const;
  friend auto operator<=>(const StudyPolicy&, const StudyPolicy&) = default;
};

// Under what circumstances policies are compared with each other.
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

// One run: a server and its workers. The kinds of statistics are kept side by
// side in it, for they never touch the weights.
struct StudyRun {
  StudyPolicy policy;
  StudyCondition condition;
  int64_t seed = 0;
  // Without kOwnBatch, which every run evaluates.
  std::vector<std::string> kinds;

  // Tells it from all others of a study whatever its kinds, and is a file
  // name: "sync-global-shuffled-w4-b2-s1".
  std::string Name() const;
};

// What is to be compared: every value with every other.
struct StudyAxes {
  std::vector<std::string> aggregation = {"sync", "async"};
  std::vector<std::string> normalization = {"global", "local"};
  std::vector<std::string> kinds = {"sync", "async", "chief", "after"};
  std::vector<std::string> staleness = {"keep"};
  std::vector<std::string> order = {"shuffled"};
  std::vector<int64_t> batch_size = {1, 2, 4, 16};
  std::vector<int64_t> workers = {4};
  std::vector<int64_t> seed = {1, 2, 3};
};

struct StudyPlan {
  // Seed by seed, so that a study that is stopped early has compared all there
  // is with the seeds it got to.
  std::vector<StudyRun> runs;
  // Sentences: what is asked for and not run, and why. Each once.
  std::vector<std::string> left_out;
};

// The runs that the axes ask for. Left out is what no run can be (global
// normalisation, or sync statistics, without sync aggregation) and what is the
// same run twice (staleness rules under sync; with one worker, global and local
// normalisation under sync).
StudyPlan PlanStudy(const StudyAxes& axes);

// Read lists separated by commas.
// Errors: InvalidArgument naming the flag and the value: not one of `known`, no
//   number of at least 1, one twice, or none.
absl::StatusOr<std::vector<std::string>> ParseWords(
    absl::string_view flag, absl::string_view text,
    const std::vector<std::string>& known);
absl::StatusOr<std::vector<int64_t>> ParseNumbers(absl::string_view flag,
                                                  absl::string_view text);

}  // namespace cohort
