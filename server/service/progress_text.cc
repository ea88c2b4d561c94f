#include "server/service/progress_text.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/measures.h"

namespace cohort {
namespace {

constexpr absl::Duration kRateWindow = absl::Seconds(10);
constexpr absl::Duration kRateResolution = absl::Milliseconds(500);

std::string Epoch(const StatusView& status) {
  const int64_t per_epoch =
      status.samples_total / std::max<int64_t>(status.epochs, 1);
  if (per_epoch <= 0) return "";
  const int64_t epoch = std::min(status.data_epoch, status.epochs - 1);
  const int64_t done =
      std::clamp<int64_t>(status.samples - epoch * per_epoch, 0, per_epoch);
  return absl::StrFormat("epoch %d of %d, %d %% of it", epoch + 1,
                         status.epochs, 100 * done / per_epoch);
}

}  // namespace

bool IsPaused(const StatusView& status) {
  if (status.phase == StatusView::Phase::kTraining) return false;
  if (status.phase != StatusView::Phase::kWaiting) return true;
  return std::any_of(status.waited_for.begin(), status.waited_for.end(),
                     [&status](Rank rank) {
                       const auto at = static_cast<size_t>(rank.value());
                       return at >= status.workers.size() ||
                              status.workers[at].activity == "vacant" ||
                              status.workers[at].activity == "reconnecting" ||
                              status.workers[at].activity == "joining";
                     });
}

void RateMeter::Add(Instant now, const StatusView& status) {
  if (IsPaused(status)) {
    paused_ = true;
    return;
  }
  if (paused_) {
    before_ = per_second();
    points_.clear();
    paused_ = false;
  }
  if (!points_.empty() && now - points_.back().first < kRateResolution) return;
  points_.emplace_back(now, status.samples);
  // Two points stay, however old, so that slow steps have a rate too.
  while (points_.size() > 2 && now - points_.front().first > kRateWindow) {
    points_.pop_front();
  }
}

double RateMeter::per_second() const {
  if (points_.size() < 2) return before_;
  const double seconds =
      absl::ToDoubleSeconds(points_.back().first - points_.front().first);
  const auto samples =
      static_cast<double>(points_.back().second - points_.front().second);
  return seconds > 0 ? samples / seconds : 0;
}

std::string RateText(double samples_per_second) {
  return absl::StrFormat("%.*f images/s", samples_per_second < 10 ? 1 : 0,
                         samples_per_second);
}

std::string ProgressText(const StatusView& status, double samples_per_second) {
  const std::string epoch = Epoch(status);
  if (epoch.empty() || !absl::StartsWith(status.state, "training")) {
    return status.state;
  }
  std::string text = absl::StrCat("step ", status.version.value(), ", ", epoch);
  if (status.train_loss.has_value()) {
    absl::StrAppendFormat(&text, ", loss %.4f", *status.train_loss);
  }
  if (samples_per_second > 0) {
    const auto left =
        static_cast<double>(status.samples_total - status.samples);
    absl::StrAppend(&text, ", ", RateText(samples_per_second), ", ETA ",
                    HumanDuration(absl::Seconds(left / samples_per_second)));
  }
  if (status.test.has_value()) {
    absl::StrAppend(&text, ", test ", MainMeasureText(*status.test));
  }
  absl::StrAppend(&text, ", workers ", status.workers_live, "/",
                  status.workers_expected, ", ", status.policy);
  return text;
}

void PrintMeasures(const EvaluationRecord& evaluation,
                   const SharedSnapshot& model, std::ostream& out) {
  if (model != nullptr && model->version != evaluation.version) {
    out << "the test is of step " << evaluation.version
        << "; the model, of step " << model->version << ", was not tested\n";
  }
  const std::vector<EvaluationResult>& results = evaluation.results;
  for (size_t i = 0; i < results.size() && results.size() > 1; ++i) {
    const EvaluationSums& sums = results[i].sums;
    out << "test " << MainMeasureName(sums) << " with "
        << StatisticsName(results[i].statistics) << " statistics "
        << PercentText(MainMeasure(sums)) << '\n';
  }
  const EvaluationSums& sums = evaluation.sums();
  for (const std::string& text : ClassIouTexts(sums)) {
    out << "test " << text << '\n';
  }
  const std::string side = SideMeasureText(sums);
  if (!side.empty()) out << "test " << side << '\n';
  out << "test " << MainMeasureText(sums) << '\n';
}

void ProgressLine::Show(std::ostream& out, absl::string_view text,
                        int columns) {
  // The last column stays free: a terminal would begin a new line after it.
  text = text.substr(0, static_cast<size_t>(std::max(columns - 1, 1)));
  const size_t blanks = width_ > text.size() ? width_ - text.size() : 0;
  out << '\r' << text << std::string(blanks, ' ') << std::flush;
  width_ = text.size();
}

void ProgressLine::Clear(std::ostream& out) {
  if (width_ == 0) return;
  out << '\r' << std::string(width_, ' ') << '\r' << std::flush;
  width_ = 0;
}

int TerminalColumns() {
  winsize size = {};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0;
  return known && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace cohort
