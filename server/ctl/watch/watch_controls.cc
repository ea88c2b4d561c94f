#include "server/ctl/watch/watch_controls.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "server/ctl/watch/stragglers.h"

namespace cohort {
namespace {

constexpr absl::string_view kUp = "\x1b[A";
constexpr absl::string_view kDown = "\x1b[B";
constexpr absl::string_view kRight = "\x1b[C";
constexpr absl::string_view kLeft = "\x1b[D";
constexpr absl::string_view kPageUp = "\x1b[5~";
constexpr absl::string_view kPageDown = "\x1b[6~";

constexpr int kPage = 10;
constexpr int kScrollColumns = 8;

constexpr absl::string_view kOrderNames[] = {"rank", "slowest first",
                                             "silent first"};

WorkerOrder Next(WorkerOrder order) {
  return static_cast<WorkerOrder>((static_cast<size_t>(order) + 1) %
                                  std::size(kOrderNames));
}

// The key at the beginning of `bytes`: a byte, or an escape sequence such as
// "\x1b[5~".
absl::string_view FirstKey(absl::string_view bytes) {
  if (bytes.size() < 2 || bytes[0] != '\x1b' || bytes[1] != '[') {
    return bytes.substr(0, 1);
  }
  size_t end = 2;
  while (end < bytes.size() && !absl::ascii_isalpha(bytes[end]) &&
         bytes[end] != '~') {
    ++end;
  }
  return bytes.substr(0, end + 1);
}

}  // namespace

WatchControls::WatchControls() { ShowLine(); }

std::vector<WatchCommand> WatchControls::Type(absl::string_view bytes,
                                              absl::Span<const int32_t> ranks) {
  std::vector<WatchCommand> commands;
  while (!bytes.empty()) {
    const absl::string_view key = FirstKey(bytes);
    bytes.remove_prefix(key.size());
    told_.clear();
    if (std::optional<WatchCommand> command =
            asks_ ? DrainKey(key) : ViewKey(key, ranks)) {
      commands.push_back(*std::move(command));
    }
  }
  ShowLine();
  return commands;
}

void WatchControls::Tell(const std::string& outcome) {
  told_ = outcome;
  ShowLine();
}

std::optional<WatchCommand> WatchControls::ViewKey(
    absl::string_view key, absl::Span<const int32_t> ranks) {
  if (key == "q") return WatchCommand{.kind = WatchCommand::Kind::kQuit};
  if (key == kUp || key == "k") Select(ranks, -1);
  if (key == kDown || key == "j") Select(ranks, 1);
  if (key == kPageUp) Select(ranks, -kPage);
  if (key == kPageDown) Select(ranks, kPage);
  if (key == kRight) view_.scrolled += kScrollColumns;
  if (key == kLeft) {
    view_.scrolled = std::max(0, view_.scrolled - kScrollColumns);
  }
  if (key == "s") view_.order = Next(view_.order);
  if (key == "d") {
    if (view_.selected.has_value()) {
      asks_ = true;
    } else {
      told_ = "select a worker with the arrow keys first";
    }
  }
  return std::nullopt;
}

std::optional<WatchCommand> WatchControls::DrainKey(absl::string_view key) {
  asks_ = false;
  if (key == "y" || key == "Y") {
    return WatchCommand{.kind = WatchCommand::Kind::kDrainWorker,
                        .rank = *view_.selected};
  }
  told_ = "nothing was drained";
  return std::nullopt;
}

void WatchControls::Select(absl::Span<const int32_t> ranks, int by) {
  if (ranks.empty()) return;
  const auto at = view_.selected.has_value()
                      ? std::find(ranks.begin(), ranks.end(), *view_.selected)
                      : ranks.end();
  const auto last = static_cast<int64_t>(ranks.size()) - 1;
  // The first key selects the first row, or the last one upwards.
  const int64_t from = at != ranks.end() ? at - ranks.begin()
                       : by > 0          ? -by
                                         : last - by;
  view_.selected =
      ranks[static_cast<size_t>(std::clamp<int64_t>(from + by, 0, last))];
}

void WatchControls::ShowLine() {
  if (!told_.empty()) {
    view_.line = told_;
  } else if (asks_) {
    view_.line = absl::StrCat("let worker ", *view_.selected,
                              " leave after its step? y/n");
  } else {
    view_.line = absl::StrCat("arrows select and scroll  s order (",
                              kOrderNames[static_cast<size_t>(view_.order)],
                              ")  d drain  q quit");
  }
}

std::vector<const v1::WorkerStatus*> OrderedWorkers(
    const v1::Status& status, WorkerOrder order,
    const std::map<int32_t, std::string>& late, bool late_first) {
  std::vector<const v1::WorkerStatus*> workers;
  for (const v1::WorkerStatus& worker : status.workers()) {
    workers.push_back(&worker);
  }
  const auto by = [&workers](auto key) {
    std::stable_sort(
        workers.begin(), workers.end(),
        [&key](const v1::WorkerStatus* a, const v1::WorkerStatus* b) {
          return key(*a) > key(*b);
        });
  };
  switch (order) {
    case WorkerOrder::kRank:
      if (late_first) {
        by([&late](const v1::WorkerStatus& w) {
          return late.contains(w.rank());
        });
      }
      break;
    case WorkerOrder::kSlowest:
      by([](const v1::WorkerStatus& w) { return StepTimeOf(w).own; });
      break;
    case WorkerOrder::kSilent:
      by([](const v1::WorkerStatus& w) { return w.silent_ms(); });
      break;
  }
  return workers;
}

}  // namespace cohort
