#include "server/ctl/study/study.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "server/ctl/study/cluster_job.h"
#include "server/ctl/study/run_result.h"
#include "server/ctl/study/study_schedule.h"

namespace cohort {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(100);

std::string LeftText(absl::Duration left) {
  return left == absl::InfiniteDuration() ? "unknown" : HumanDuration(left);
}

// One line a kind of statistics.
std::string CsvLines(const StudyRun& run, const RunResult& result) {
  std::string text;
  for (const auto& [kind, percent] : result.percent) {
    // An earlier matrix may have had more kinds.
    if (kind != kOwnBatch && std::find(run.kinds.begin(), run.kinds.end(),
                                       kind) == run.kinds.end()) {
      continue;
    }
    absl::StrAppendFormat(
        &text, "%s,%s,%s,%s,%s,%d,%d,%d,%s,%.4f,%.4f,%.3f,%s,%s\n",
        run.policy.aggregation, run.policy.staleness, run.policy.normalization,
        kind, run.condition.order, run.condition.workers,
        run.condition.batch_size, run.seed, result.measure, percent,
        result.Gap(kind), result.seconds,
        run.policy.wire.empty() ? "float32" : run.policy.wire, run.Name());
  }
  return text;
}

// Runs one study from its plan to its numbers.
class Study {
 public:
  Study(const StudyOptions& options, const StudyIo& io, StudyFolder folder,
        StudyPlan plan)
      : options_(options),
        io_(io),
        folder_(std::move(folder)),
        plan_(std::move(plan)) {}

  absl::StatusOr<StudyOutcome> Run() {
    outcome_.runs = static_cast<int64_t>(plan_.runs.size());
    COHORT_ASSIGN_OR_RETURN(std::vector<StudyRun> left, Left());
    for (const std::string& reason : plan_.left_out) {
      io_.say(absl::StrCat("left out: ", reason));
    }
    COHORT_RETURN_IF_ERROR(TellStart(left));
    Work(std::move(left));
    if (!refused_.ok()) {
      COHORT_RETURN_IF_ERROR(folder_.ForgetFlags());
      return refused_;
    }
    COHORT_RETURN_IF_ERROR(WriteNumbers());
    return std::move(outcome_);
  }

 private:
  absl::StatusOr<std::vector<StudyRun>> Left() {
    std::vector<StudyRun> left;
    for (const StudyRun& run : plan_.runs) {
      COHORT_ASSIGN_OR_RETURN(const bool done, folder_.IsDone(run));
      if (!done) left.push_back(run);
    }
    outcome_.done = outcome_.runs - static_cast<int64_t>(left.size());
    return left;
  }

  absl::Status TellStart(const std::vector<StudyRun>& left) {
    io_.say(absl::StrCat(
        outcome_.runs, " runs, ",
        std::min<int64_t>(options_.parallel, static_cast<int64_t>(left.size())),
        " at a time; ", outcome_.done, " are done already"));
    COHORT_ASSIGN_OR_RETURN(const std::vector<std::string> held,
                            folder_.DoneNames());
    const int64_t others =
        std::count_if(held.begin(), held.end(), [this](const auto& name) {
          return std::none_of(
              plan_.runs.begin(), plan_.runs.end(),
              [&name](const StudyRun& run) { return run.Name() == name; });
        });
    if (others > 0) {
      io_.say(absl::StrCat("the matrix has changed: ", others, " runs in ",
                           options_.out,
                           " are not part of it any more, and stay there"));
    }
    return absl::OkStatus();
  }

  void Work(std::vector<StudyRun> left) {
    const auto start = [this](const StudyRun& run) {
      return StartClusterJob(
          run, {.programs = options_.programs, .flags = options_.flags},
          folder_, io_.clock);
    };
    StudySchedule schedule(
        std::move(left), options_.parallel, start,
        {.on_done =
             [this](const StudyRun& run, absl::Duration took) {
               ++outcome_.done;
               io_.say(absl::StrCat(outcome_.done, "/", outcome_.runs, " ",
                                    run.Name(), " took ", HumanDuration(took)));
             },
         .on_failed =
             [this](const StudyRun& run, const absl::Status& why, bool again) {
               io_.say(absl::StrCat(
                   run.Name(), " failed: ", why.message(),
                   again ? "; it is run once more later" : "; it is left out"));
               // If the first run's flags are refused, those of all others are
               // too.
               if (absl::IsInvalidArgument(why) && outcome_.done == 0) {
                 refused_ = why;
               }
             }},
        io_.clock);
    while (!schedule.done()) {
      if (!outcome_.stopped && !io_.go_on()) {
        outcome_.stopped = true;
        schedule.RequestStop();
      }
      if (!refused_.ok()) schedule.RequestStop();
      schedule.Poll(kPollInterval);
      io_.progress(absl::StrCat(
          outcome_.done, " of ", outcome_.runs, " runs done, ",
          schedule.running(), " running, ", schedule.failed().size(),
          " failed; time left: ", LeftText(schedule.TimeLeft())));
    }
    outcome_.failed = schedule.failed();
  }

  absl::Status WriteNumbers() {
    std::string text =
        "aggregation,staleness,normalization,bn_statistics,order,workers,"
        "batch_size,seed,measure,percent,gap_points,seconds,wire,run\n";
    for (const StudyRun& run : plan_.runs) {
      COHORT_ASSIGN_OR_RETURN(const bool done, folder_.IsDone(run));
      if (!done) continue;
      COHORT_ASSIGN_OR_RETURN(const RunResult result,
                              ReadRunResult(run.kinds, folder_.RunPath(run)));
      absl::StrAppend(&text, CsvLines(run, result));
    }
    return folder_.Write("study.csv", text);
  }

  // Fixed after construction.
  const StudyOptions& options_;
  const StudyIo& io_;

  StudyFolder folder_;
  StudyPlan plan_;
  StudyOutcome outcome_;
  // Why the first run could not begin.
  absl::Status refused_;
};

}  // namespace

absl::StatusOr<StudyOutcome> RunStudy(const StudyOptions& options,
                                      const StudyIo& io) {
  COHORT_RETURN_IF_ERROR(CheckFlags(options.flags));
  StudyPlan plan = PlanStudy(options.axes);
  if (plan.runs.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the matrix has no run that is possible: ",
                     absl::StrJoin(plan.left_out, "; ")));
  }
  COHORT_ASSIGN_OR_RETURN(
      StudyFolder folder,
      StudyFolder::Open(RealFileSystem(), options.out, options.flags));
  return Study(options, io, std::move(folder), std::move(plan)).Run();
}

}  // namespace cohort
