#include "server/ctl/watch/watch_frame.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

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
constexpr int kWideColumns = 140;
// From this width on there is room for cores and memory.
constexpr int kMediumColumns = 100;
constexpr int kNameColumns = 11;
// Limit on sentences about late workers; the rest are counted.
constexpr size_t kLateLines = 3;

bool BeginsCharacter(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
}

// Cuts the text to `columns` characters, some of which may be several bytes.
absl::string_view Cut(absl::string_view text, int columns) {
  int count = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (BeginsCharacter(text[i]) && ++count > columns) return text.substr(0, i);
  }
  return text;
}

// Splits `text` after the words that fit into `columns`.
std::pair<absl::string_view, absl::string_view> Wrapped(absl::string_view text,
                                                        int columns) {
  const absl::string_view fits = Cut(text, columns);
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
  // One line, or two.
  void WrappedText(absl::string_view text, bool bold = false) {
    const auto [first, rest] = Wrapped(text, style_.size.columns);
    Text(first, bold);
    if (!rest.empty()) Text(rest, bold);
  }
  // One line, or two.
  void Value(absl::string_view name, absl::string_view value) {
    const auto [first, rest] = Wrapped(value, value_columns());
    Text(absl::StrFormat("%-*s%s", kNameColumns, name, first));
    if (!rest.empty()) {
      Text(absl::StrFormat("%-*s%s", kNameColumns, "", rest));
    }
  }
  // A row of the table, of which `scrolled` columns are out of sight. Marked if
  // it continues to the right.
  void Row(absl::string_view row, int scrolled, bool bold) {
    row.remove_prefix(Cut(row, scrolled).size());
    const absl::string_view fits = Cut(row, style_.size.columns);
    if (fits.size() == row.size()) return Text(row, bold);
    Text(absl::StrCat(Cut(row, style_.size.columns - 1),
                      style_.unicode ? "›" : ">"),
         bold);
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
  std::string text = absl::StrFormat(" %3.0f %% of the run", 100 * share);
  if (status.epochs() > 0) {
    absl::StrAppendFormat(&text, ", epoch %d of %d", EpochNumber(status),
                          status.epochs());
  }
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
                                    " images, step ", StepText(status)));
}

void AddMeasures(const v1::Status& status, Frame& frame) {
  for (const auto& [name, value] : MeasuresOf(status)) {
    frame.Value(Printable(name), absl::StrFormat("%.6g", value));
  }
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

void AddPolicy(const v1::Status& status, Frame& frame) {
  const v1::GetPolicyReply& policy = status.policy();
  frame.Value("policy", absl::StrCat(Printable(policy.text()), ", since step ",
                                     policy.since_version()));
  frame.Value("learn rate", absl::StrFormat("%.4g", status.learning_rate()));
  if (!policy.pending().empty()) {
    frame.Value("change to", PendingText(policy));
  }
  if (!status.checkpoint_problem().empty()) {
    frame.Value("checkpoint", Printable(status.checkpoint_problem()));
  }
  if (!status.data_problem().empty()) {
    frame.Value("data", Printable(status.data_problem()));
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
  const StalenessCounts staleness(status.staleness_versions().begin(),
                                  status.staleness_versions().end());
  if (!staleness.empty()) {
    frame.Value("staleness", absl::StrCat("steps: ", StalenessText(staleness)));
  }
}

void AddLate(const std::map<int32_t, std::string>& late, Frame& frame) {
  if (late.empty()) return frame.Value("late", "none");
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

// The `workers` that fit on the screen: from the first one on, or around
// the selected one.
std::vector<const v1::WorkerStatus*> ShownWorkers(
    std::vector<const v1::WorkerStatus*> workers,
    const std::optional<int32_t>& selected, size_t rows) {
  if (workers.size() <= rows) return workers;
  const auto at = std::find_if(workers.begin(), workers.end(),
                               [&selected](const v1::WorkerStatus* worker) {
                                 return worker->rank() == selected;
                               });
  const auto half = static_cast<ptrdiff_t>(rows / 2);
  const ptrdiff_t first =
      at == workers.end() ? 0
                          : std::clamp<ptrdiff_t>(
                                at - workers.begin() - half, 0,
                                static_cast<ptrdiff_t>(workers.size() - rows));
  workers.erase(workers.begin(), workers.begin() + first);
  workers.resize(rows);
  return workers;
}

std::vector<std::string> WorkerHeader(int columns) {
  std::vector<std::string> header = {"rank", "state", "batch", "heard from"};
  if (columns >= kWideColumns) {
    for (absl::string_view name : kStepPhaseNames) header.emplace_back(name);
  } else {
    header.insert(header.end(), {"own work", "waits"});
  }
  if (columns >= kMediumColumns) {
    header.insert(header.end(), {"cores", "memory"});
  }
  if (columns >= kWideColumns) header.emplace_back("via");
  header.emplace_back("process");
  return header;
}

std::vector<std::string> WorkerCells(const v1::WorkerStatus& worker,
                                     int columns) {
  std::vector<std::string> cells = {
      absl::StrCat(worker.rank()), Printable(worker.state()),
      absl::StrCat(worker.batch_size()), AgeText(worker)};
  for (std::string& cell : PhaseCells(worker, columns >= kWideColumns)) {
    cells.push_back(std::move(cell));
  }
  if (columns >= kMediumColumns) {
    cells.insert(cells.end(), {CoresText(worker), MemoryText(worker)});
  }
  if (columns >= kWideColumns) {
    cells.push_back(Printable(worker.transport()));
  }
  cells.push_back(Printable(worker.description()));
  return cells;
}

void AddWorkers(const v1::Status& status,
                const std::map<int32_t, std::string>& late,
                const WatchView& view, Frame& frame) {
  const int columns = frame.style().size.columns;
  // One row is for the header, one for the number of workers left out, and one
  // for the last line.
  const int reserved = view.line.empty() ? 2 : 3;
  const auto rows =
      static_cast<size_t>(std::max(1, frame.rows_left() - reserved));
  const size_t all = static_cast<size_t>(status.workers_size());
  const auto workers =
      ShownWorkers(OrderedWorkers(status, view.order, late, all > rows),
                   view.selected, rows);
  Table table(WorkerHeader(columns));
  for (const v1::WorkerStatus* worker : workers) {
    table.Add(WorkerCells(*worker, columns));
  }
  const std::string text = table.ToString(/*bold=*/false);
  const std::vector<absl::string_view> lines =
      absl::StrSplit(absl::StripSuffix(text, "\n"), '\n');
  for (size_t i = 0; i < lines.size(); ++i) {
    const bool selected = i > 0 && workers[i - 1]->rank() == view.selected;
    // The mark is a character as well, for terminals without bold text.
    const absl::string_view mark = !view.selected.has_value() ? ""
                                   : selected                 ? "> "
                                                              : "  ";
    frame.Row(absl::StrCat(mark, lines[i]), view.scrolled,
              /*bold=*/i == 0 || selected);
  }
  if (all > workers.size()) {
    frame.Text(absl::StrCat("and ", all - workers.size(), " more"));
  }
}

}  // namespace

std::string WatchFrame(const Overview& overview, const Curve& losses,
                       const std::string& notice, const WatchView& view,
                       const FrameStyle& style) {
  const v1::Status& status = overview.status;
  Frame frame(style);
  frame.WrappedText(
      absl::StrCat("run ", RunText(status), " at ", overview.server));
  frame.WrappedText(notice.empty() ? Printable(status.state()) : notice,
                    /*bold=*/true);
  frame.Text("");
  AddProgress(status, frame);
  AddLoss(status, losses, frame);
  AddMeasures(status, frame);
  AddTest(status, frame);
  AddPolicy(status, frame);
  if (!status.shards().empty()) frame.Value("shards", ShardsLine(status));
  AddVerdicts(status, frame);
  const std::map<int32_t, std::string> late = Stragglers(status);
  AddLate(late, frame);
  frame.Text("");
  AddWorkers(status, late, view, frame);
  if (!view.line.empty()) frame.Text(Printable(view.line), /*bold=*/true);
  return frame.ToString();
}

}  // namespace cohort
