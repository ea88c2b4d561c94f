#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/cli/progress_line.h"
#include "common/status_macros.h"
#include "server/ctl/cluster/programs.h"
#include "server/ctl/json_line.h"
#include "server/ctl/study/study.h"
#include "server/ctl/verb.h"

namespace cohort {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kStudyDefault[] = "study";
// Interval of progress lines if the line cannot be rewritten.
constexpr absl::Duration kProgressInterval = absl::Seconds(30);

absl::Status ReadWords(const Arguments& arguments, const std::string& flag,
                       const std::vector<std::string>& known,
                       std::vector<std::string>& values) {
  const std::optional<std::string> text = arguments.Value(flag);
  if (!text.has_value()) return absl::OkStatus();
  COHORT_ASSIGN_OR_RETURN(values, ParseWords(flag, *text, known));
  return absl::OkStatus();
}

absl::Status ReadNumbers(const Arguments& arguments, const std::string& flag,
                         std::vector<int64_t>& values) {
  const std::optional<std::string> text = arguments.Value(flag);
  if (!text.has_value()) return absl::OkStatus();
  COHORT_ASSIGN_OR_RETURN(values, ParseNumbers(flag, *text));
  return absl::OkStatus();
}

// The workers of a study stay, so an elastic cohort would only be one of MAX.
absl::Status CheckFixedSizes(const Arguments& arguments) {
  const std::string sizes = arguments.Value("workers").value_or("");
  if (!absl::StrContains(sizes, ':')) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--workers: got '", sizes,
      "', want the sizes to compare, such as 1,2,4: no worker of a study "
      "leaves, "
      "so MIN:MAX would be MAX. --global_batch=N gives steps of all sizes as "
      "many images"));
}

absl::StatusOr<StudyAxes> AxesOf(const Arguments& arguments) {
  StudyAxes axes;
  COHORT_RETURN_IF_ERROR(ReadWords(arguments, "aggregation",
                                   {"sync", "bounded", "async"},
                                   axes.aggregation));
  COHORT_RETURN_IF_ERROR(ReadWords(arguments, "normalization",
                                   {"global", "local"}, axes.normalization));
  COHORT_RETURN_IF_ERROR(ReadWords(arguments, "bn_statistics",
                                   {"sync", "async", "chief", "after"},
                                   axes.kinds));
  COHORT_RETURN_IF_ERROR(ReadWords(arguments, "staleness",
                                   {"keep", "drop", "scale", "compensate"},
                                   axes.staleness));
  COHORT_RETURN_IF_ERROR(
      ReadWords(arguments, "wire", {"float32", "bf16"}, axes.wire));
  COHORT_RETURN_IF_ERROR(
      ReadWords(arguments, "order", {"shuffled", "sorted"}, axes.order));
  COHORT_RETURN_IF_ERROR(ReadNumbers(arguments, "batch_size", axes.batch_size));
  COHORT_RETURN_IF_ERROR(CheckFixedSizes(arguments));
  COHORT_RETURN_IF_ERROR(ReadNumbers(arguments, "workers", axes.workers));
  COHORT_RETURN_IF_ERROR(ReadNumbers(arguments, "seed", axes.seed));
  return axes;
}

int64_t Cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return CPU_COUNT(&set);
}

// Allows one core for each process.
int32_t ParallelByCores(const StudyAxes& axes) {
  const int64_t workers =
      *std::max_element(axes.workers.begin(), axes.workers.end());
  return static_cast<int32_t>(std::max<int64_t>(1, Cores() / (workers + 1)));
}

// The command as typed, so that it can be repeated.
std::string CommandOf(const Arguments& arguments) {
  std::string command = "cohortctl study";
  const auto add = [&command](const std::vector<std::string>& words) {
    for (const std::string& word : words) {
      absl::StrAppend(&command, " ", ShellWord(word));
    }
  };
  for (const GivenFlag& given : arguments.given) add(given.typed);
  if (!arguments.rest.has_value()) return command;
  absl::StrAppend(&command, " --");
  add(*arguments.rest);
  return command;
}

absl::StatusOr<StudyOptions> StudyOptionsOf(const Context& context) {
  const Arguments& arguments = context.arguments;
  StudyOptions options{.out = arguments.Value("out").value_or(kStudyDefault),
                       .command = CommandOf(arguments)};
  COHORT_ASSIGN_OR_RETURN(options.axes, AxesOf(arguments));
  constexpr Limits kCounts = {.min = 1};
  COHORT_ASSIGN_OR_RETURN(
      options.parallel,
      NumberOf(arguments, "parallel", ParallelByCores(options.axes), kCounts));
  COHORT_ASSIGN_OR_RETURN(options.flags.reference_images,
                          NumberOf(arguments, "reference_images", 0, kCounts));
  // Ordered by name, so that a study continues whatever the order of its flags.
  for (const auto& [name, value] : context.settings) {
    options.flags.server.push_back(absl::StrCat("--", name, "=", value));
  }
  for (const auto& [name, value] : context.worker_flags) {
    options.flags.worker.push_back(absl::StrCat("--", name, "=", value));
  }
  if (arguments.rest.has_value()) {
    options.flags.worker.insert(options.flags.worker.end(),
                                arguments.rest->begin(), arguments.rest->end());
  }
  COHORT_ASSIGN_OR_RETURN(
      options.programs, FindPrograms(arguments.Value("programs").value_or("")));
  return options;
}

// Output while the study runs: lines, and below them on a terminal a line
// that is rewritten.
class ProgressScreen {
 public:
  explicit ProgressScreen(CtlIo& io) : io_(io), line_(io.err) {}

  void Say(const std::string& text) {
    Clear();
    io_.err << text << std::endl;
  }

  void Progress(const std::string& text) {
    if (io_.terminal) return line_.Show(text, io_.screen().columns);
    const Instant now = io_.clock.Now();
    if (told_.has_value() && now - *told_ < kProgressInterval) return;
    // At the start the progress adds nothing to the lines already printed.
    if (told_.has_value()) io_.err << text << std::endl;
    told_ = now;
  }

  void Clear() { line_.Clear(); }

 private:
  CtlIo& io_;
  ProgressLine line_;
  std::optional<Instant> told_;
};

std::string OutcomeJson(const StudyOutcome& outcome, const std::string& out) {
  const Json json = {{"out", out},
                     {"runs", outcome.runs},
                     {"done", outcome.done},
                     {"failed", outcome.failed}};
  return JsonLine(json);
}

void ShowOutcome(const StudyOutcome& outcome, const std::string& out,
                 Context& context) {
  if (context.json) {
    context.io.out << OutcomeJson(outcome, out);
    return;
  }
  if (outcome.done == 0) return;
  context.io.out << "the numbers are in " << out << "/study.csv; cohort-study "
                 << out << " makes tables, plots and a recommendation of them"
                 << std::endl;
}

absl::Status RunStudyVerb(Context& context) {
  COHORT_ASSIGN_OR_RETURN(const StudyOptions options, StudyOptionsOf(context));
  ProgressScreen screen(context.io);
  const StudyIo io{
      .say = [&screen](const std::string& text) { screen.Say(text); },
      .progress = [&screen](const std::string& text) { screen.Progress(text); },
      .go_on = [&context] { return context.io.pause(absl::ZeroDuration()); },
      .clock = context.io.clock};
  COHORT_ASSIGN_OR_RETURN(const StudyOutcome outcome, RunStudy(options, io));
  screen.Clear();
  ShowOutcome(outcome, options.out, context);
  const std::string progress =
      absl::StrCat(outcome.done, " of ", outcome.runs, " runs are done");
  if (outcome.stopped) {
    return absl::CancelledError(
        absl::StrCat("stopped: ", progress, "\ngo on with: ", options.command));
  }
  if (outcome.failed.empty()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(
      outcome.failed.size(), " runs failed, twice each; ", progress, ": ",
      absl::StrJoin(outcome.failed, ", "), "\ntheir logs are in ", options.out,
      "/runs; the same command tries them again"));
}

}  // namespace

Verb StudyVerb() {
  return {.name = "study",
          .summary = "measures on this machine which policy suits a model",
          .flags = {{"out", "DIR",
                     "folder for runs and numbers; a stopped study continues "
                     "there (default study)"},
                    {"aggregation", "LIST",
                     "sync, bounded, async (default sync,async)"},
                    {"normalization", "LIST", "global, local (default both)"},
                    {"bn_statistics", "LIST",
                     "sync, async, chief, after; kept side by side in each "
                     "run (default all)"},
                    {"staleness", "LIST",
                     "keep, drop, scale, compensate; for bounded and async "
                     "(default keep)"},
                    {"wire", "LIST", "float32, bf16 (default float32)"},
                    {"order", "LIST",
                     "order of the data: shuffled, sorted (default shuffled)"},
                    {"batch_size", "LIST",
                     "images of each worker in a step (default 1,2,4,16)"},
                    {"workers", "LIST", "workers of a run (default 4)"},
                    {"seed", "LIST",
                     "seeds; intervals need at least two (default 1,2,3)"},
                    {"reference_images", "N",
                     "--learning_rate is for steps of N images; scale it to "
                     "the size of each run's steps (default: no scaling)"},
                    {"parallel", "N",
                     "runs at a time (default: one core for each process)"},
                    {"programs", "DIR",
                     "folder of cohort-server and cohort-worker (default: that "
                     "of cohortctl)"}},
          .takes_program_flags = true,
          .rest = "FLAGS OF THE WORKERS",
          .contacts = Contacts::kNothing,
          .examples = {"cohortctl study --batch_size=1,4 --epochs=4 "
                       "--learning_rate=0.05 --reference_images=64 "
                       "--limit=4000 --test_limit=2000",
                       "cohortctl study --out=camvid --aggregation=sync "
                       "--order=shuffled,sorted --batch_size=1 --seed=1,2 "
                       "--epochs=16 --model=unet --width=16 --dataset=voc "
                       "--data_dir=camvid --image_size=88x120"},
          .run = &RunStudyVerb};
}

}  // namespace cohort
