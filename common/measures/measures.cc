#include "common/measures/measures.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

constexpr int64_t kCountMax = int64_t{1} << 50;
// kCountMax labels, each of a class with a weight of at most kCountMax.
constexpr double kWeightMax = 0x1p100;

absl::Status CheckCount(absl::string_view name, int64_t count, int64_t most) {
  if (count >= 0 && count <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": got ", count, ", want 0 to ", most));
}

absl::Status CheckClasses(const EvaluationSums& sums) {
  // Counts not yet attributed to a class. Summing the classes' counts could
  // overflow.
  int64_t correct = sums.correct;
  int64_t predicted = sums.labels;
  int64_t actual = sums.labels;
  for (const ClassSums& c : sums.classes) {
    COHORT_RETURN_IF_ERROR(
        CheckCount("classes.predicted", c.predicted, predicted));
    COHORT_RETURN_IF_ERROR(CheckCount("classes.actual", c.actual, actual));
    COHORT_RETURN_IF_ERROR(
        CheckCount("classes.intersection", c.intersection,
                   std::min({correct, c.predicted, c.actual})));
    correct -= c.intersection;
    predicted -= c.predicted;
    actual -= c.actual;
  }
  if (correct == 0 && predicted == 0 && actual == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "classes: got ", sums.correct - correct, " of ", sums.labels - actual,
      " labels correct and ", sums.labels - predicted, " predicted, want ",
      sums.correct, " of ", sums.labels));
}

std::string MeasuresOf(const EvaluationSums& sums) {
  return absl::StrCat(sums.classes.size(), " classes and ",
                      sums.top5_correct.has_value() ? "a" : "no",
                      " top-5 count");
}

double Share(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

}  // namespace

absl::Status Validate(const EvaluationSums& sums) {
  COHORT_RETURN_IF_ERROR(CheckCount("samples", sums.samples, kCountMax));
  COHORT_RETURN_IF_ERROR(CheckCount("labels", sums.labels, kCountMax));
  COHORT_RETURN_IF_ERROR(CheckCount("correct", sums.correct, sums.labels));
  // False for NaN.
  if (!(sums.loss_weight >= 0 && sums.loss_weight <= kWeightMax)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "loss_weight: got ", sums.loss_weight, ", want 0 to ", kWeightMax));
  }
  if (sums.top5_correct.has_value()) {
    COHORT_RETURN_IF_ERROR(
        CheckCount("top5_correct", *sums.top5_correct, sums.labels));
    if (*sums.top5_correct < sums.correct) {
      return absl::InvalidArgumentError(
          absl::StrCat("top5_correct: got ", *sums.top5_correct,
                       ", want at least the ", sums.correct, " correct ones"));
    }
  }
  return sums.classes.empty() ? absl::OkStatus() : CheckClasses(sums);
}

absl::Status CheckSameMeasures(const EvaluationSums& part,
                               const EvaluationSums& whole) {
  if (part.classes.size() == whole.classes.size() &&
      part.top5_correct.has_value() == whole.top5_correct.has_value()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("evaluation: got ", MeasuresOf(part), ", want ",
                   MeasuresOf(whole), ", as in its other parts"));
}

void Add(const EvaluationSums& part, EvaluationSums& sums) {
  const absl::Status same = CheckSameMeasures(part, sums);
  COHORT_CHECK(same.ok(), same.message());
  sums.samples += part.samples;
  sums.loss_sum += part.loss_sum;
  sums.loss_weight += part.loss_weight;
  sums.correct += part.correct;
  sums.labels += part.labels;
  if (part.top5_correct.has_value()) *sums.top5_correct += *part.top5_correct;
  for (size_t c = 0; c < part.classes.size(); ++c) {
    sums.classes[c].intersection += part.classes[c].intersection;
    sums.classes[c].predicted += part.classes[c].predicted;
    sums.classes[c].actual += part.classes[c].actual;
  }
}

double MeanLoss(const EvaluationSums& sums) {
  return sums.loss_weight > 0 ? sums.loss_sum / sums.loss_weight : 0;
}

double Accuracy(const EvaluationSums& sums) {
  return Share(sums.correct, sums.labels);
}

std::optional<double> TopFiveAccuracy(const EvaluationSums& sums) {
  if (!sums.top5_correct.has_value()) return std::nullopt;
  return Share(*sums.top5_correct, sums.labels);
}

std::vector<std::optional<double>> ClassIou(const EvaluationSums& sums) {
  std::vector<std::optional<double>> iou;
  for (const ClassSums& c : sums.classes) {
    const int64_t all = c.predicted + c.actual - c.intersection;
    iou.emplace_back();
    if (all > 0) iou.back() = Share(c.intersection, all);
  }
  return iou;
}

std::optional<double> MeanIou(const EvaluationSums& sums) {
  double total = 0;
  int64_t classes = 0;
  for (const std::optional<double>& iou : ClassIou(sums)) {
    if (!iou.has_value()) continue;
    total += *iou;
    ++classes;
  }
  if (classes == 0) return std::nullopt;
  return total / static_cast<double>(classes);
}

std::string PercentText(std::optional<double> share) {
  return share.has_value() ? absl::StrFormat("%.1f %%", 100 * *share) : "none";
}

absl::string_view MainMeasureName(const EvaluationSums& sums) {
  return sums.classes.empty() ? "accuracy" : "mIoU";
}

std::optional<double> MainMeasure(const EvaluationSums& sums) {
  return sums.classes.empty() ? Accuracy(sums) : MeanIou(sums);
}

std::string MainMeasureText(const EvaluationSums& sums) {
  return absl::StrCat(MainMeasureName(sums), " ",
                      PercentText(MainMeasure(sums)));
}

std::string SideMeasureText(const EvaluationSums& sums) {
  if (!sums.classes.empty()) {
    return absl::StrCat("pixel accuracy ", PercentText(Accuracy(sums)));
  }
  if (!sums.top5_correct.has_value()) return "";
  return absl::StrCat("top-5 accuracy ", PercentText(TopFiveAccuracy(sums)));
}

std::vector<std::string> ClassIouTexts(const EvaluationSums& sums) {
  std::vector<std::string> texts;
  for (const std::optional<double>& iou : ClassIou(sums)) {
    texts.push_back(
        absl::StrCat("IoU of class ", texts.size(), " ", PercentText(iou)));
  }
  return texts;
}

}  // namespace cohort
