#pragma once

#include <string>
#include <utility>
#include <vector>

#include "server/ctl/study/summary.h"

namespace cohort {

// A run of the sync policy, of two workers with shuffled data.
struct ExampleRun {
  std::string normalization = "global";
  int64_t batch_size = 1;
  int64_t seed = 1;
  double seconds = 10;
  // Values at the end, by kind of statistics; kOwnBatch is 95 if missing.
  std::vector<std::pair<std::string, double>> measure;
};

inline FinishedRun Finished(const ExampleRun& example) {
  FinishedRun finished{
      .run = {.policy = {.aggregation = "sync",
                         .normalization = example.normalization},
              .condition = {.order = "shuffled",
                            .workers = 2,
                            .batch_size = example.batch_size},
              .seed = example.seed}};
  RunResult& result = finished.result;
  result.measure = "accuracy";
  result.seconds = example.seconds;
  result.curves[kOwnBatch] = {{.samples = 1, .seconds = 1, .measure = 95}};
  for (const auto& [kind, measure] : example.measure) {
    finished.run.kinds.push_back(kind);
    // Half of the final value after half of the time.
    result.curves[kind] = {
        {.samples = 50, .seconds = example.seconds / 2, .measure = measure / 2},
        {.samples = 100, .seconds = example.seconds, .measure = measure}};
  }
  return finished;
}

}  // namespace cohort
