#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cohort/v1/admin.pb.h"

namespace cohort {

// The order of the workers' rows.
enum class WorkerOrder {
  // By rank, with late workers first if not all rows fit.
  kRank,
  // The longest own work in a step first.
  kSlowest,
  // The longest silence first.
  kSilent,
};

// An operator's choices for the screen of a watch.
struct WatchView {
  WorkerOrder order = WorkerOrder::kRank;
  // A rank; absent until a key selects one.
  std::optional<int32_t> selected;
  // Columns of the workers' table that are scrolled out on the left.
  int scrolled = 0;
  // The last line: a question, the result of a command, or the keys. Empty
  // without a keyboard.
  std::string line;
};

// A command that was typed.
struct WatchCommand {
  enum class Kind { kQuit, kDrainWorker };
  Kind kind = Kind::kQuit;
  // For kDrainWorker.
  int32_t rank = 0;
};

// Turns keys into changes of the view and into commands. It knows nothing of
// terminals: keys are the bytes that a terminal in raw mode sends.
class WatchControls {
 public:
  WatchControls();

  const WatchView& view() const { return view_; }

  // Reads typed bytes. `ranks` are the workers' in the order of their rows.
  // Returns the commands that they complete, in order.
  std::vector<WatchCommand> Type(absl::string_view bytes,
                                 absl::Span<const int32_t> ranks);

  // Shows the outcome of a command until the next key.
  void Tell(const std::string& outcome);

 private:
  std::optional<WatchCommand> ViewKey(absl::string_view key,
                                      absl::Span<const int32_t> ranks);
  std::optional<WatchCommand> DrainKey(absl::string_view key);
  void Select(absl::Span<const int32_t> ranks, int by);
  void ShowLine();

  WatchView view_;
  // The next key answers whether the selected worker is to leave.
  bool asks_ = false;
  // The outcome of a command; empty once a key was typed.
  std::string told_;
};

// The workers in that order.
std::vector<const v1::WorkerStatus*> OrderedWorkers(
    const v1::Status& status, WorkerOrder order,
    const std::map<int32_t, std::string>& late, bool late_first);

}  // namespace cohort
