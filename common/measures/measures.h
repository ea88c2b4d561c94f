#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/evaluation_sums.h"

// Measures of a model, derived from the sums of an evaluation.
namespace cohort {

// Errors: InvalidArgument naming the count: negative or beyond 2^50 (sums of
//   shards must not overflow), more found than exist, counts of classes that do
//   not add up to those of all labels, a weight that is not a number from 0 to
//   2^100. The loss may be anything: a diverged model is reported, not refused.
absl::Status Validate(const EvaluationSums& sums);

// Checks whether `part` may be added to `whole`.
// Errors: InvalidArgument if one has measures that the other lacks, or a
//   different number of classes.
absl::Status CheckSameMeasures(const EvaluationSums& part,
                               const EvaluationSums& whole);

// Both must have the same measures (a caller bug otherwise).
void Add(const EvaluationSums& part, EvaluationSums& sums);

// 0 if no label was valid; the same applies to the shares below.
double MeanLoss(const EvaluationSums& sums);

// Share of valid labels that were predicted correctly, in [0, 1]; share of
// pixels if each pixel has a label.
double Accuracy(const EvaluationSums& sums);

// Share of labels among the five highest scores; absent if not counted.
std::optional<double> TopFiveAccuracy(const EvaluationSums& sums);

// Intersection over union of each class: found / (predicted + actual - found),
// over the valid pixels of all images together. Absent for a class that was
// neither present nor predicted. Empty if an image has one label.
std::vector<std::optional<double>> ClassIou(const EvaluationSums& sums);

// Mean over the classes that have an IoU; absent if no class has one.
// Source: Everingham et al., "The PASCAL Visual Object Classes Challenge: A
//   Retrospective", 2015, section 3.3, with the background as a class; there
//   every class occurs.
std::optional<double> MeanIou(const EvaluationSums& sums);

// "41.2 %"; "none" if absent.
std::string PercentText(std::optional<double> share);

// The measure that a run is judged by: "accuracy", or "mIoU" if there is a
// label a pixel.
absl::string_view MainMeasureName(const EvaluationSums& sums);
std::optional<double> MainMeasure(const EvaluationSums& sums);

// The main measure: "accuracy 91.2 %".
std::string MainMeasureText(const EvaluationSums& sums);
// The other measure: "top-5 accuracy 99.1 %" or "pixel accuracy 88.0 %"; empty
// if there is none.
std::string SideMeasureText(const EvaluationSums& sums);
// "IoU of class 3 45.6 %", one entry a class.
std::vector<std::string> ClassIouTexts(const EvaluationSums& sums);

}  // namespace cohort
