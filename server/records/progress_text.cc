#include "server/records/progress_text.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/measures/measures.h"

namespace cohort {
namespace {

std::string Epoch(const StatusView& status) {
  if (status.samples_total <= 0) return "";
  // Not of the epoch: the run may end before its first epoch does
  // (--max_steps), so the number of its samples says nothing about those of an
  // epoch.
  const std::string share = absl::StrFormat(
      "%d %% of the run",
      std::min<int64_t>(100 * status.samples / status.samples_total, 100));
  if (status.epochs == 0) return share;
  return absl::StrCat("epoch ", std::min(status.data_epoch + 1, status.epochs),
                      " of ", status.epochs, ", ", share);
}

}  // namespace

std::string RateText(double samples_per_second) {
  return absl::StrFormat("%.*f images/s", samples_per_second < 10 ? 1 : 0,
                         samples_per_second);
}

std::string ProgressText(const StatusView& status, double samples_per_second) {
  const std::string epoch = Epoch(status);
  if (epoch.empty() || !absl::StartsWith(status.state, "training")) {
    return status.state;
  }
  std::string text = absl::StrCat("step ", status.version.value());
  if (status.local_steps > 0) {
    absl::StrAppend(&text, " (", status.local_steps, " local steps)");
  }
  absl::StrAppend(&text, ", ", epoch);
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
  // A log does not repeat in every line what stays the same.
  if (status.elastic()) {
    absl::StrAppend(&text, ", workers ", status.workers_live, " of ",
                    status.workers_min, ":", status.workers_expected);
  } else if (status.workers_live != status.workers_expected) {
    absl::StrAppend(&text, ", workers ", status.workers_live, "/",
                    status.workers_expected);
  }
  return text;
}

void PrintMeasures(const EvaluationRecord& evaluation,
                   const SharedSnapshot& model, std::ostream& out) {
  if (model != nullptr && model->version != evaluation.version) {
    out << "the test result is of step " << evaluation.version
        << "; the model of step " << model->version << " was not tested\n";
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

}  // namespace cohort
