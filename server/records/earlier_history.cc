#include "server/records/earlier_history.h"

#include <algorithm>
#include <optional>

#include "absl/strings/numbers.h"
#include "common/formats/csv.h"

namespace cohort {

const char kHistoryHeader[] =
    "version,epoch,samples,seconds,train_loss,train_accuracy,learning_rate,"
    "samples_per_second,test_loss,test_accuracy,workers,policy,"
    "bn_statistics,test_top5_accuracy,test_miou,local_steps\n";

namespace {

// Columns.
constexpr size_t kVersion = 0;
constexpr size_t kEpoch = 1;
constexpr size_t kSamples = 2;
constexpr size_t kSeconds = 3;
constexpr size_t kTrainLoss = 4;
constexpr size_t kTrainAccuracy = 5;
constexpr size_t kLearningRate = 6;
constexpr size_t kTestLoss = 8;
constexpr size_t kTestAccuracy = 9;
constexpr size_t kStatistics = 12;
constexpr size_t kTestMiou = 14;
constexpr size_t kColumns = 16;

using Fields = std::vector<std::string>;

std::optional<double> Number(const std::string& field) {
  double value = 0;
  if (!absl::SimpleAtod(field, &value)) return std::nullopt;
  return value;
}

int64_t Count(const std::string& field) {
  int64_t value = 0;
  return absl::SimpleAtoi(field, &value) ? value : 0;
}

// Tables may be edited by hand: their numbers must not overflow later sums.
bool IsPlausible(const Fields& row) {
  constexpr int64_t kCountMax = int64_t{1} << 53;
  constexpr double kSecondsMax = 1e12;
  const auto plausible = [](int64_t count) {
    return count >= 0 && count <= kCountMax;
  };
  const double seconds = Number(row[kSeconds]).value_or(0);
  return plausible(Count(row[kVersion])) && plausible(Count(row[kEpoch])) &&
         plausible(Count(row[kSamples])) && seconds >= 0 &&
         seconds <= kSecondsMax;
}

EvaluationPoint EvaluationOf(const Fields& row) {
  return {.version = Count(row[kVersion]),
          .epoch = Count(row[kEpoch]),
          .seconds = Number(row[kSeconds]).value_or(0),
          .statistics = row[kStatistics],
          .loss = Number(row[kTestLoss]).value_or(0),
          .accuracy = Number(row[kTestAccuracy]).value_or(0),
          .mean_iou = Number(row[kTestMiou])};
}

// `before` is the preceding row, with default values if there is none.
TrainingSample SampleOf(const Fields& row, const TrainingSample& before) {
  TrainingSample sample{
      .version = Count(row[kVersion]),
      .samples = Count(row[kSamples]),
      .seconds = Number(row[kSeconds]).value_or(0),
      .learning_rate = Number(row[kLearningRate]).value_or(0)};
  sample.commits = std::max<int64_t>(sample.version - before.version, 1);
  // A row has means; its number of images is their weight.
  const auto weight = static_cast<double>(
      std::max<int64_t>(sample.samples - before.samples, 1));
  if (const std::optional<double> loss = Number(row[kTrainLoss])) {
    sample.loss_sum = *loss * weight;
    sample.loss_weight = weight;
  }
  if (const std::optional<double> accuracy = Number(row[kTrainAccuracy])) {
    sample.correct = *accuracy * weight;
    sample.labels = weight;
  }
  return sample;
}

double SecondsAVersion(const std::vector<TrainingSample>& training) {
  if (training.empty()) return 0;
  const TrainingSample& last = training.back();
  const TrainingSample first =
      training.size() > 1 ? training[training.size() - 2] : TrainingSample();
  const auto versions = static_cast<double>(last.version - first.version);
  return versions > 0 ? (last.seconds - first.seconds) / versions : 0;
}

}  // namespace

EarlierHistory EarlierHistoryOf(const std::vector<std::string>& rows,
                                Version restored) {
  EarlierHistory history;
  double seconds = 0;
  TrainingSample last;
  for (const std::string& row : rows) {
    const Fields fields = CsvFields(row);
    if (fields.size() < kColumns || !IsPlausible(fields)) continue;
    seconds = std::max(seconds, Number(fields[kSeconds]).value_or(0));
    if (fields[kTestLoss].empty()) {
      last = SampleOf(fields, last);
      history.training.push_back(last);
      continue;
    }
    history.evaluations.push_back(EvaluationOf(fields));
    // Only the row with the first kind of statistics has means over the epoch.
    if (!fields[kTrainLoss].empty()) history.test = history.evaluations.back();
  }
  const auto untold = static_cast<double>(
      std::max<int64_t>(restored.value() - last.version, 0));
  const double told_until = last.version > 0 ? last.seconds : 0;
  history.elapsed = absl::Seconds(std::max(
      seconds, told_until + untold * SecondsAVersion(history.training)));
  return history;
}

}  // namespace cohort
