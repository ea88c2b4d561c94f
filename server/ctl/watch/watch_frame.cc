#include "server/ctl/watch/watch_frame.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/measures/staleness_histogram.h"
#include "common/step_phase.h"
#include "server/ctl/status_words.h"
#include "server/ctl/table.h"
#include "server/ctl/watch/stragglers.h"

namespace cohort {
namespace {

// From this width on there is room for every phase of a step.
constexpr int kWideColumns = 120;
constexpr int kNameColumns = 11;
// Limit on sentences about late workers; the rest are counted.
constexpr size_t kLateLines = 3;

// Cuts the text to `columns` characters, some of which may be several bytes.
std::string Cut(absl::string_view text, int columns) {
  int count = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool begins = (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80;
    if (begins && ++count > columns) return std::string(text.substr(0, i));
  }
  return std::string(text);
}

// Splits `text` after the words that fit into `columns`.
std::pair<absl::string_view, absl::string_view> Wrapped(absl::string_view text,
                                                        int columns) {
  const std::string fits = Cut(text, columns);
  if (fits.size() == text.size()) return {text, ""};
  const size_t space = text.rfind(' ', fits.size());
  if (space == absl::string_view::npos) return {text, ""};
  return {text.substr(0, space), text.substr(space + 1)};
}

// Lines of a frame, each cut to the screen.
class Frame {
 public:
  explicit Frame(const FrameStyle& style) : style_(style) {}

  // Columns for a value beside its name.
  int value_columns() const { return style_.size.columns - kNameColumns; }
  const FrameStyle& style() const { return style_; }
  int rows_left() const {
    return style_.size.rows - 1 - static_cast<int>(lines_.size());
  }

  void Text(absl::string_view text, bool bold = false) {
    lines_.push_back(Bold(Cut(text, style_.size.columns), bold && style_.bold));
  }
  void Value(absl::string_view name, absl::string_view value) {
    Text(absl::StrFormat("%-*s%s", kNameColumns, name, value));
  }
  std::string ToString() const { return absl::StrJoin(lines_, "\n") + "\n"; }

 private:
  const FrameStyle& style_;
  std::vector<std::string> lines_;
};

void AddProgress(const v1::Status& status, Frame& frame) {
  const double total = static_cast<double>(status.samples_total());
  const double share =
      total > 0 ? std::min(1.0, static_cast<double>(status.samples()) / total)
                : 0;
  const std::string text =
      absl::StrFormat(" %3.0f %% of the run, epoch %d of %d", 100 * share,
                      EpochNumber(status), status.epochs());
  const int width = std::max(
      10,
      std::min(60, frame.value_columns() - 2 - static_cast<int>(text.size())));
  const int done = static_cast<int>(share * width);
  frame.Value("progress",
              absl::StrCat("[", std::string(static_cast<size_t>(done), '#'),
                           std::string(static_cast<size_t>(width - done), '.'),
                           "]", text));
  frame.Value("speed", absl::StrCat(RateText(status), "; ", status.samples(),
                                    " of ", status.samples_total(),
                                    " images, step ", status.version()));
}

void AddLoss(const v1::Status& status, const Curve& losses, Frame& frame) {
  if (!status.has_train_loss()) return;
  const std::string number = absl::StrFormat("%.4f ", status.train_loss());
  frame.Value("loss", absl::StrCat(
                          number, Sparkline(losses.values(),
                                            frame.value_columns() -
                                                static_cast<int>(number.size()),
                                            frame.style().unicode)));
}

void AddTest(const v1::Status& status, Frame& frame) {
  std::vector<std::string> measures;
  for (const auto& [name, value] : TestMeasures(status)) {
    // A line for each of many classes would leave no room for the rest.
    if (name == kIouByClass) continue;
    measures.push_back(
        absl::StrCat(absl::StripPrefix(name, "test "), " ", value));
  }
  if (!measures.empty()) frame.Value("test", absl::StrJoin(measures, ", "));
}

void AddPolicy(const v1::GetPolicyReply& policy, const v1::Status& status,
               Frame& frame) {
  frame.Value("policy", absl::StrCat(Printable(policy.policy()),
                                     ", since step ", PolicyVersion(policy)));
  frame.Value("learn rate", absl::StrFormat("%.4g", status.learning_rate()));
  if (!policy.pending().empty()) {
    frame.Value("change to", PendingText(policy));
  }
}

// The results of pushes, in the words of the counters: "applied 300".
void AddVerdicts(const v1::Status& status, Frame& frame) {
  std::vector<std::string> verdicts;
  std::vector<std::string> events;
  for (const auto& [name, count] : std::map<std::string, int64_t>(
           status.counters().begin(), status.counters().end())) {
    if (count == 0) continue;
    const absl::string_view of_push = absl::StripPrefix(name, "pushes_");
    const std::string text = absl::StrCat(
        absl::StrReplaceAll(Printable(of_push), {{"_", " "}}), " ", count);
    (of_push.size() < name.size() ? verdicts : events).push_back(text);
  }
  if (!verdicts.empty()) frame.Value("pushes", absl::StrJoin(verdicts, ", "));
  if (!events.empty()) frame.Value("events", absl::StrJoin(events, ", "));
  const StalenessCounts staleness(status.staleness().begin(),
                                  status.staleness().end());
  if (!staleness.empty()) {
    frame.Value("staleness", absl::StrCat("steps ", StalenessText(staleness)));
  }
}

void AddLate(const std::map<int32_t, std::string>& late, Frame& frame) {
  if (late.empty()) return frame.Value("late", "nobody");
  size_t shown = 0;
  for (const auto& [rank, why] : late) {
    if (++shown > kLateLines) {
      return frame.Value(
          "", absl::StrCat("and ", late.size() - kLateLines, " more"));
    }
    frame.Value(shown == 1 ? "late" : "",
                absl::StrCat("worker ", rank, ": ", why));
  }
}

std::string Milliseconds(double seconds) {
  return absl::StrFormat("%.0f ms", 1000 * seconds);
}

std::vector<std::string> PhaseCells(const v1::WorkerStatus& worker, bool wide) {
  std::vector<std::string> cells;
  const auto& phases = worker.phase_seconds();
  if (!wide) {
    const StepTime time = StepTimeOf(worker);
    if (phases.empty()) return {"", ""};
    return {Milliseconds(time.own), Milliseconds(time.waiting)};
  }
  for (absl::string_view name : kStepPhaseNames) {
    const auto found = phases.find(std::string(name));
    cells.push_back(found == phases.end() ? "" : Milliseconds(found->second));
  }
  return cells;
}

// Late workers come first if not all of them fit.
std::vector<const v1::WorkerStatus*> ShownWorkers(
    const v1::Status& status, const std::map<int32_t, std::string>& late,
    size_t rows) {
  std::vector<const v1::WorkerStatus*> workers;
  for (const v1::WorkerStatus& worker : status.workers()) {
    workers.push_back(&worker);
  }
  if (workers.size() <= rows) return workers;
  std::stable_partition(workers.begin(), workers.end(),
                        [&late](const v1::WorkerStatus* worker) {
                          return late.contains(worker->rank());
                        });
  workers.resize(rows);
  return workers;
}

void AddWorkers(const v1::Status& status,
                const std::map<int32_t, std::string>& late, Frame& frame) {
  const bool wide = frame.style().size.columns >= kWideColumns;
  std::vector<std::string> header = {"rank", "state", "batch", "heard from"};
  if (wide) {
    for (absl::string_view name : kStepPhaseNames) header.emplace_back(name);
  } else {
    header.insert(header.end(), {"own work", "waits"});
  }
  header.emplace_back("process");
  Table table(std::move(header));
  // One row is for the header, one for the number of workers left out.
  const auto rows = static_cast<size_t>(std::max(1, frame.rows_left() - 2));
  const auto workers = ShownWorkers(status, late, rows);
  for (const v1::WorkerStatus* worker : workers) {
    std::vector<std::string> cells = {
        absl::StrCat(worker->rank()), Printable(worker->state()),
        absl::StrCat(worker->batch_size()), AgeText(*worker)};
    for (std::string& cell : PhaseCells(*worker, wide)) {
      cells.push_back(std::move(cell));
    }
    cells.push_back(Printable(worker->description()));
    table.Add(std::move(cells));
  }
  const std::string text = table.ToString(/*bold=*/false);
  bool first = true;
  for (absl::string_view line :
       absl::StrSplit(absl::StripSuffix(text, "\n"), '\n')) {
    frame.Text(line, /*bold=*/first);
    first = false;
  }
  const auto left_out =
      static_cast<size_t>(status.workers_size()) - workers.size();
  if (left_out > 0) frame.Text(absl::StrCat("and ", left_out, " more"));
}

}  // namespace

std::string WatchFrame(const Overview& overview, const Curve& losses,
                       const std::string& notice, const FrameStyle& style) {
  const v1::Status& status = overview.status;
  Frame frame(style);
  frame.Text(absl::StrCat("run ", RunText(status), " at ", overview.server));
  const std::string state = notice.empty() ? Printable(status.state()) : notice;
  const auto [first, rest] = Wrapped(state, style.size.columns);
  frame.Text(first, /*bold=*/true);
  if (!rest.empty()) frame.Text(rest, /*bold=*/true);
  frame.Text("");
  AddProgress(status, frame);
  AddLoss(status, losses, frame);
  AddTest(status, frame);
  AddPolicy(overview.policy, status, frame);
  AddVerdicts(status, frame);
  const std::map<int32_t, std::string> late = Stragglers(status);
  AddLate(late, frame);
  frame.Text("");
  AddWorkers(status, late, frame);
  return frame.ToString();
}

}  // namespace cohort
