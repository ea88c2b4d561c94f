#include "server/ctl/study/matrix.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

constexpr char kSync[] = "sync";
constexpr char kFloat32[] = "float32";

// Collects runs without duplicates.
class PlanBuilder {
 public:
  void Add(StudyRun run) {
    if (!Possible(run)) return;
    Unify(run);
    if (!names_.insert(run.Name()).second) return;
    plan_.runs.push_back(std::move(run));
  }

  StudyPlan Take() { return std::move(plan_); }

 private:
  void LeaveOut(const std::string& sentence) {
    std::vector<std::string>& told = plan_.left_out;
    if (std::find(told.begin(), told.end(), sentence) == told.end()) {
      told.push_back(sentence);
    }
  }

  // Removes invalid kinds of statistics; returns false if the run itself is
  // invalid.
  bool Possible(StudyRun& run) {
    const std::string& aggregation = run.policy.aggregation;
    if (aggregation == kSync) return true;
    if (run.policy.normalization == "global") {
      LeaveOut(absl::StrCat("global normalisation with ", aggregation,
                            " aggregation: workers meet in synchronous steps "
                            "only"));
      return false;
    }
    if (std::erase(run.kinds, kSync) > 0) {
      LeaveOut(absl::StrCat("sync statistics with ", aggregation,
                            " aggregation: they combine the workers of a "
                            "synchronous step"));
    }
    return !run.kinds.empty();
  }

  // Gives identical runs the same name.
  void Unify(StudyRun& run) {
    if (run.policy.aggregation != kSync) return;
    run.policy.staleness.clear();
    if (run.condition.workers == 1 && run.policy.normalization == "global") {
      run.policy.normalization = "local";
      LeaveOut("global normalisation with one worker: it is the same as local");
    }
  }

  StudyPlan plan_;
  std::set<std::string> names_;
};

std::vector<StudyCondition> Conditions(const StudyAxes& axes) {
  std::vector<StudyCondition> conditions;
  for (const std::string& order : axes.order) {
    for (const int64_t workers : axes.workers) {
      for (const int64_t batch_size : axes.batch_size) {
        conditions.push_back(
            {.order = order, .workers = workers, .batch_size = batch_size});
      }
    }
  }
  return conditions;
}

std::vector<StudyPolicy> Policies(const StudyAxes& axes) {
  std::vector<StudyPolicy> policies;
  for (const std::string& aggregation : axes.aggregation) {
    for (const std::string& staleness : axes.staleness) {
      for (const std::string& normalization : axes.normalization) {
        for (const std::string& wire : axes.wire) {
          policies.push_back({.aggregation = aggregation,
                              .staleness = staleness,
                              .normalization = normalization,
                              .wire = wire == kFloat32 ? "" : wire});
        }
      }
    }
  }
  return policies;
}

absl::Status Bad(absl::string_view flag, absl::string_view got,
                 absl::string_view want) {
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, ": got '", got, "', want ", want));
}

template <typename T>
absl::Status CheckOnce(absl::string_view flag, absl::string_view text,
                       const std::vector<T>& values) {
  if (std::set<T>(values.begin(), values.end()).size() == values.size()) {
    return absl::OkStatus();
  }
  return Bad(flag, text, "each value once");
}

}  // namespace

std::string StudyPolicy::Text() const {
  const std::string rule =
      staleness.empty() || staleness == "keep" ? "" : " (" + staleness + ")";
  return absl::StrCat(aggregation, rule, ", ", normalization,
                      wire.empty() ? "" : ", ", wire);
}

std::string StudyCondition::Text() const {
  return absl::StrCat(order, ", ", workers,
                      workers == 1 ? " worker" : " workers", " x ", batch_size,
                      batch_size == 1 ? " image" : " images");
}

std::string StudyRun::Name() const {
  return absl::StrCat(policy.aggregation, policy.staleness.empty() ? "" : "-",
                      policy.staleness, "-", policy.normalization,
                      policy.wire.empty() ? "" : "-", policy.wire, "-",
                      condition.order, "-w", condition.workers, "-b",
                      condition.batch_size, "-s", seed);
}

StudyPlan PlanStudy(const StudyAxes& axes) {
  PlanBuilder builder;
  for (const int64_t seed : axes.seed) {
    for (const StudyCondition& condition : Conditions(axes)) {
      for (const StudyPolicy& policy : Policies(axes)) {
        builder.Add({.policy = policy,
                     .condition = condition,
                     .seed = seed,
                     .kinds = axes.kinds});
      }
    }
  }
  return builder.Take();
}

absl::StatusOr<std::vector<std::string>> ParseWords(
    absl::string_view flag, absl::string_view text,
    const std::vector<std::string>& known) {
  std::vector<std::string> words = absl::StrSplit(text, ',');
  for (const std::string& word : words) {
    if (std::find(known.begin(), known.end(), word) != known.end()) continue;
    return Bad(flag, text,
               absl::StrCat("some of ", absl::StrJoin(known, ", "),
                            ", separated by commas"));
  }
  COHORT_RETURN_IF_ERROR(CheckOnce(flag, text, words));
  return words;
}

absl::StatusOr<std::vector<int64_t>> ParseNumbers(absl::string_view flag,
                                                  absl::string_view text) {
  std::vector<int64_t> numbers;
  for (const absl::string_view word : absl::StrSplit(text, ',')) {
    int64_t number = 0;
    if (!absl::SimpleAtoi(word, &number) || number < 1) {
      return Bad(flag, text,
                 "numbers of 1 or more, separated by commas, such as 1,2,4");
    }
    numbers.push_back(number);
  }
  COHORT_RETURN_IF_ERROR(CheckOnce(flag, text, numbers));
  return numbers;
}

}  // namespace cohort
