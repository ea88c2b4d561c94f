#include "server/records/run_recorder.h"

#include <errno.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/check.h"
#include "common/formats/csv.h"
#include "common/formats/file_system.h"
#include "common/log/log.h"
#include "common/measures/change_headline.h"
#include "common/measures/measures.h"
#include "common/status_macros.h"
#include "server/core/settings/settings.h"
#include "server/records/earlier_history.h"
#include "server/records/earlier_results.h"
#include "server/records/history_table.h"

namespace cohort {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(100);
constexpr absl::Duration kTerminalInterval = absl::Milliseconds(200);
constexpr absl::Duration kLineInterval = absl::Seconds(10);
constexpr int64_t kCommitsPerRow = 50;

constexpr absl::string_view kHistoryFile = "history.csv";
constexpr absl::string_view kPolicyFile = "policy.csv";
constexpr absl::string_view kClassFile = "class_iou.csv";
constexpr absl::string_view kClassHeader =
    "version,epoch,bn_statistics,class,iou,intersection,predicted,actual\n";
constexpr absl::string_view kMeasuresFile = "measures.csv";
constexpr absl::string_view kMeasuresHeader =
    "version,samples,measure,mean,weight\n";
constexpr absl::string_view kPolicyHeader =
    "policy_epoch,version,samples,seconds,changes,text,run_name\n";

// Empty if absent.
std::string Fraction(std::optional<double> value) {
  return value.has_value() ? absl::StrFormat("%.6f", *value) : "";
}

// "aggregation=async normalization=local".
std::string ChangesText(const SettingValues& changes) {
  return absl::StrJoin(changes, " ", absl::PairFormatter("="));
}

}  // namespace

absl::StatusOr<std::unique_ptr<RunRecorder>> RunRecorder::Open(
    const RecorderOptions& options, std::ostream& out, const Clock& clock,
    std::function<StatusView()> status) {
  std::unique_ptr<RunRecorder> recorder(
      new RunRecorder(options, out, clock, std::move(status)));
  if (!options.results_dir.empty()) {
    COHORT_RETURN_IF_ERROR(recorder->OpenFiles());
  }
  COHORT_RETURN_IF_ERROR(recorder->OpenEvents());
  return recorder;
}

void RunRecorder::Begin() {
  poller_ = std::make_unique<PeriodicTask>("recorder", kPollInterval,
                                           [this] { Poll(); });
}

RunRecorder::RunRecorder(const RecorderOptions& options, std::ostream& out,
                         const Clock& clock, std::function<StatusView()> status)
    : options_(options),
      out_(out),
      clock_(clock),
      status_(std::move(status)),
      start_(clock.Now()),
      wall_start_(absl::Now()),
      run_(options.run) {
  const std::vector<PolicyRecord>& policies = options.policies;
  SettingValues settings;
  for (size_t i = 0; i < policies.size(); ++i) {
    // The first record is the initial policy, not a change.
    if (i > 0 && i >= options.policies_before) {
      changes_.push_back(
          {.record = policies[i],
           .headline = ChangeHeadline(settings, policies[i].changed),
           .written = true});
    }
    for (const auto& [name, value] : policies[i].changed) {
      settings[name] = value;
    }
    policy_epoch_ = policies[i].policy_epoch;
  }
}

RunRecorder::~RunRecorder() { Finish(); }

std::string RunRecorder::PathOf(absl::string_view name) const {
  return absl::StrCat(options_.results_dir, "/", name);
}

absl::StatusOr<bool> RunRecorder::OpenTable(absl::string_view name,
                                            absl::string_view header,
                                            std::ofstream& file) const {
  const std::string path = PathOf(name);
  const absl::Status pipe = CheckNoPipe(path);
  if (!pipe.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("--results_dir: ", pipe.message()));
  }
  file.open(path, options_.restored.has_value() ? std::ios::app | std::ios::ate
                                                : std::ios::trunc);
  // A continued file already has its header.
  const bool is_new = file.tellp() == std::ofstream::pos_type(0);
  if (is_new) file << header;
  file.flush();
  if (file) return is_new;
  return absl::FailedPreconditionError(absl::StrCat(
      "--results_dir: cannot write ", path, ": ", std::strerror(errno),
      "; make room there, or name a folder that this user can "
      "write"));
}

absl::Status RunRecorder::ContinueFiles(Version restored) {
  COHORT_ASSIGN_OR_RETURN(const std::vector<std::string> rows,
                          CutTable(PathOf(kHistoryFile), restored.value()));
  earlier_ = EarlierHistoryOf(rows, restored);
  for (const EvaluationPoint& known : earlier_.evaluations) {
    known_evaluations_.emplace(known.version, known.statistics);
  }
  for (absl::string_view name : {kClassFile, kMeasuresFile}) {
    COHORT_RETURN_IF_ERROR(CutTable(PathOf(name), restored.value()).status());
  }
  // A change that is not in the checkpoint did not take effect.
  const size_t kept = options_.policies_before;
  const int64_t policy_epoch =
      kept == 0 ? 0 : options_.policies[kept - 1].policy_epoch;
  return CutTable(PathOf(kPolicyFile), policy_epoch).status();
}

absl::Status RunRecorder::OpenFiles() {
  if (options_.restored.has_value()) {
    const absl::Status status = ContinueFiles(*options_.restored);
    if (!status.ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat("--results_dir: ", status.message()));
    }
  } else {
    COHORT_ASSIGN_OR_RETURN(const std::string aside,
                            SetEarlierResultsAside(options_.results_dir));
    if (!aside.empty()) {
      Log(LogLevel::kWarning,
          absl::StrCat("--results_dir: ", options_.results_dir,
                       " had the results of an earlier run; they are in ",
                       aside, " now"));
    }
    // These are created when they are needed; those of a start that failed must
    // not remain.
    for (absl::string_view name : {kClassFile, kMeasuresFile}) {
      std::error_code ignored;
      std::filesystem::remove(PathOf(name), ignored);
    }
  }
  COHORT_RETURN_IF_ERROR(
      OpenTable(kHistoryFile, kHistoryHeader, history_).status());
  COHORT_ASSIGN_OR_RETURN(const bool is_new,
                          OpenTable(kPolicyFile, kPolicyHeader, policy_));
  // A continued file already has the earlier records.
  for (size_t i = is_new ? 0 : options_.policies_before;
       i < options_.policies.size(); ++i) {
    std::optional<Instant> at;
    if (i >= options_.policies_before) at = start_;
    WriteChange(options_.policies[i], at);
  }
  return absl::OkStatus();
}

absl::Status RunRecorder::OpenEvents() {
  if (options_.tensorboard_dir.empty()) return absl::OkStatus();
  const int64_t restart_at =
      options_.restored.has_value() ? options_.restored->value() + 1 : 0;
  absl::StatusOr<std::unique_ptr<EventFile>> file =
      EventFile::Create(options_.tensorboard_dir, wall_start_, restart_at);
  if (!file.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("--tensorboard: ", file.status().message()));
  }
  events_ = *std::move(file);
  return absl::OkStatus();
}

void RunRecorder::Add(const CommitRecord& record, Window& window) {
  ++window.commits;
  window.members_max =
      std::max(window.members_max, static_cast<int32_t>(record.members.size()));
  window.last = record;
  // A skipped step has no loss worth averaging.
  if (record.skipped) return;
  window.samples += record.commit_samples;
  window.loss_sum += record.loss_weight * record.loss;
  window.loss_weight += record.loss_weight;
  window.correct += static_cast<double>(record.labels) * record.accuracy;
  window.labels += record.labels;
  for (const Measure& measure : record.measures) {
    auto& [sum, weight] = window.measures[measure.name];
    sum += measure.sum;
    weight += measure.weight;
  }
}

void RunRecorder::Committed(const CommitRecord& record) {
  const Instant now = clock_.Now();
  MutexLock lock(mu_);
  if (recent_.commits == 0 && recent_.begin == Instant()) recent_.begin = now;
  if (epoch_.commits == 0 && epoch_.begin == Instant()) epoch_.begin = now;
  Add(record, recent_);
  Add(record, epoch_);
  if (recent_.commits == kCommitsPerRow) EndWindow(now);
  if (record.epoch_ended) {
    ended_epochs_[record.version] = epoch_;
    epoch_ = Window{.begin = now};
  }
}

void RunRecorder::Evaluated(const EvaluationRecord& record) {
  const Instant now = clock_.Now();
  MutexLock lock(mu_);
  if (!record.on_request) last_evaluation_ = record;
  Row row{.evaluation = record, .policy = PolicyText(run_.policy), .at = now};
  const auto epoch = ended_epochs_.find(record.version);
  if (epoch != ended_epochs_.end()) {
    row.window = epoch->second;
    ended_epochs_.erase(epoch);
  }
  rows_.push_back(row);
  for (row.result = 1; row.result < record.results.size(); ++row.result) {
    rows_.push_back(row);
  }
}

void RunRecorder::EndWindow(Instant now) {
  rows_.push_back(
      {.window = recent_, .policy = PolicyText(run_.policy), .at = now});
  recent_ = Window{.begin = now};
}

void RunRecorder::PolicyChanged(const PolicyRecord& record) {
  const Instant now = clock_.Now();
  MutexLock lock(mu_);
  // This change was already reported at the start.
  if (record.policy_epoch <= policy_epoch_) return;
  // A row must not have commits of two policies.
  if (recent_.commits > 0) EndWindow(now);
  policy_epoch_ = record.policy_epoch;
  changes_.push_back(
      {.record = record,
       .headline = ChangeHeadline(SettingsOf(run_), record.changed),
       .at = now});
  const absl::Status set = SetSettings(record.changed, run_);
  COHORT_CHECK(set.ok(), set.message());
}

std::optional<EvaluationRecord> RunRecorder::last_evaluation() const {
  MutexLock lock(mu_);
  return last_evaluation_;
}

void RunRecorder::Finish() {
  if (poller_ == nullptr) return;
  poller_.reset();
  {
    MutexLock lock(mu_);
    if (recent_.commits > 0) EndWindow(clock_.Now());
  }
  Poll();
  line_.Clear();
}

void RunRecorder::Poll() {
  std::vector<Row> rows;
  std::vector<Change> changes;
  {
    MutexLock lock(mu_);
    rows.swap(rows_);
    changes.swap(changes_);
  }
  const StatusView status = status_();
  const Instant now = clock_.Now();
  // Workers leave at the end of the run, but its last rows must count those
  // that computed them.
  if (!status.ended) workers_ = status.workers_live;
  for (const Row& row : rows) {
    if (!IsKnown(row)) {
      WriteEvents(row);
      if (history_.is_open()) WriteRow(row);
      if (history_.is_open() && row.evaluation.has_value()) WriteClasses(row);
      if (history_.is_open() && !row.evaluation.has_value()) {
        WriteMeasures(*row.window);
      }
    }
    if (row.evaluation.has_value()) PrintEvaluation(row);
  }
  for (const Change& change : changes) {
    if (policy_.is_open() && !change.written) {
      WriteChange(change.record, change.at);
    }
    PrintChange(change);
  }
  rate_.Add(now, status);
  PrintProgress(status, now);
}

void RunRecorder::WriteRow(const Row& row) {
  Version version;
  int64_t epoch = 0;
  std::string samples;
  std::string local_steps;
  std::string train = ",,,";
  if (row.window.has_value()) {
    const Window& w = *row.window;
    version = w.last.version;
    epoch = w.last.data_epoch + 1;
    samples = absl::StrCat(w.last.samples);
    if (w.last.local_steps > 0) {
      local_steps = absl::StrCat(w.last.local_steps);
    }
    const auto n = static_cast<double>(w.samples);
    const double seconds = absl::ToDoubleSeconds(row.at - w.begin);
    // Only in the evaluation's first row, not for every kind of statistics.
    if (row.result == 0) {
      train = absl::StrFormat(
          "%s,%s,%.8g,%s",
          w.loss_weight > 0 ? Fraction(w.loss_sum / w.loss_weight) : "",
          w.labels > 0 ? Fraction(w.correct / static_cast<double>(w.labels))
                       : "",
          w.last.learning_rate,
          seconds > 0 ? absl::StrFormat("%.1f", n / seconds) : "");
    }
  }
  int32_t workers = workers_;
  if (row.window.has_value()) {
    // The run, or an elastic cohort's time at one size, may be shorter than the
    // interval at which the status is read.
    workers = std::max(workers, row.window->members_max);
  }
  std::string test = ",";
  std::string measures = ",";
  absl::string_view statistics;
  if (row.evaluation.has_value()) {
    version = row.evaluation->version;
    epoch = row.evaluation->epochs;
    const EvaluationResult& result = row.evaluation->results[row.result];
    test =
        absl::StrCat(Fraction(result.loss()), ",", Fraction(result.accuracy()));
    measures = absl::StrCat(Fraction(TopFiveAccuracy(result.sums)), ",",
                            Fraction(MeanIou(result.sums)));
    statistics = StatisticsName(result.statistics);
  }
  history_ << version << ',' << epoch << ',' << samples << ','
           << absl::StrFormat("%.3f", absl::ToDoubleSeconds(Elapsed(row.at)))
           << ',' << train << ',' << test << ',' << workers << ",\""
           << row.policy << "\"," << statistics << ',' << measures << ','
           << local_steps << '\n'
           << std::flush;
}

bool RunRecorder::IsKnown(const Row& row) const {
  if (!row.evaluation.has_value() || row.evaluation->on_request) return false;
  const EvaluationResult& result = row.evaluation->results[row.result];
  return known_evaluations_.contains(
      {row.evaluation->version.value(),
       std::string(StatisticsName(result.statistics))});
}

void RunRecorder::AddTrainScalars(const Row& row,
                                  std::vector<EventScalar>& scalars) {
  if (!row.window.has_value()) return;
  const Window& w = *row.window;
  const bool epoch = row.evaluation.has_value();
  if (w.loss_weight > 0) {
    scalars.push_back({epoch ? "loss/train_epoch" : "loss/train",
                       w.loss_sum / w.loss_weight});
  }
  if (w.labels > 0) {
    scalars.push_back({epoch ? "accuracy/train_epoch" : "accuracy/train",
                       w.correct / static_cast<double>(w.labels)});
  }
  for (const auto& [name, mean] : w.measures) {
    scalars.push_back({absl::StrCat(name, epoch ? "/train_epoch" : "/train"),
                       mean.first / mean.second});
  }
  const double seconds = absl::ToDoubleSeconds(row.at - w.begin);
  if (epoch || !(seconds > 0)) return;
  scalars.push_back({"learning_rate", w.last.learning_rate});
  scalars.push_back(
      {"images_per_second", static_cast<double>(w.samples) / seconds});
  scalars.push_back({"step_seconds", seconds / static_cast<double>(w.commits)});
}

void RunRecorder::WriteEvents(const Row& row) {
  if (events_ == nullptr) return;
  std::vector<EventScalar> scalars;
  // Only for the evaluation's first kind of statistics.
  if (row.result == 0) AddTrainScalars(row, scalars);
  std::string suffix;
  if (row.evaluation.has_value()) {
    const EvaluationResult& result = row.evaluation->results[row.result];
    // The kind that is exported, at an epoch's end, has no suffix.
    if (row.result > 0 || row.evaluation->on_request) {
      suffix = absl::StrCat("_", StatisticsName(result.statistics));
    }
    scalars.push_back({"loss/test" + suffix, result.loss()});
    scalars.push_back({"accuracy/test" + suffix, result.accuracy()});
    const std::optional<double> miou = MeanIou(result.sums);
    if (miou.has_value()) scalars.push_back({"miou/test" + suffix, *miou});
  }
  const Version version = row.evaluation.has_value() ? row.evaluation->version
                                                     : row.window->last.version;
  const absl::Status status =
      events_->Add(version.value(), wall_start_ + (row.at - start_), scalars);
  if (!status.ok()) Log(LogLevel::kError, status.message());
}

void RunRecorder::WriteClasses(const Row& row) {
  const EvaluationResult& result = row.evaluation->results[row.result];
  const std::vector<std::optional<double>> iou = ClassIou(result.sums);
  if (iou.empty()) return;
  OpenWhenNeeded(kClassFile, kClassHeader, classes_);
  for (size_t c = 0; c < iou.size(); ++c) {
    const ClassSums& sums = result.sums.classes[c];
    classes_ << row.evaluation->version << ',' << row.evaluation->epochs << ','
             << StatisticsName(result.statistics) << ',' << c << ','
             << Fraction(iou[c]) << ',' << sums.intersection << ','
             << sums.predicted << ',' << sums.actual << '\n';
  }
  classes_ << std::flush;
}

void RunRecorder::WriteMeasures(const Window& window) {
  if (window.measures.empty()) return;
  OpenWhenNeeded(kMeasuresFile, kMeasuresHeader, measures_);
  for (const auto& [name, mean] : window.measures) {
    measures_ << window.last.version << ',' << window.last.samples << ','
              << name << ','
              << absl::StrFormat("%.8g,%.8g", mean.first / mean.second,
                                 mean.second)
              << '\n';
  }
  measures_ << std::flush;
}

void RunRecorder::OpenWhenNeeded(absl::string_view name,
                                 absl::string_view header,
                                 std::ofstream& file) {
  if (file.is_open()) return;
  const absl::Status open = OpenTable(name, header, file).status();
  // Only logged: the other files could be opened when the run began.
  if (!open.ok()) Log(LogLevel::kError, open.message());
}

void RunRecorder::WriteChange(const PolicyRecord& record,
                              std::optional<Instant> at) {
  policy_ << record.policy_epoch << ',' << record.version << ','
          << record.samples << ',';
  if (at.has_value()) {
    policy_ << absl::StrFormat("%.3f", absl::ToDoubleSeconds(Elapsed(*at)));
  }
  const std::string why = NoteText(record.note);
  policy_ << ',' << CsvQuoted(ChangesText(record.changed)) << ','
          << CsvQuoted(absl::StrCat(record.text, why.empty() ? "" : "; ", why));
  policy_ << ',' << options_.run.run_name << '\n' << std::flush;
}

void RunRecorder::PrintChange(const Change& change) {
  line_.Clear();
  out_ << "policy " << change.headline << " at step " << change.record.version
       << '\n'
       << std::flush;
}

void RunRecorder::PrintEvaluation(const Row& row) {
  const EvaluationRecord& record = *row.evaluation;
  const EvaluationResult& result = record.results[row.result];
  // With one kind the name is omitted, unless the evaluation was requested.
  const bool named = record.results.size() > 1 || record.on_request;
  line_.Clear();
  const std::string side = SideMeasureText(result.sums);
  out_ << absl::StrFormat(
              "epoch %d: test %s, %s%sloss %.4f, %s%s\n", record.epochs,
              MainMeasureText(result.sums), side, side.empty() ? "" : ", ",
              result.loss(), HumanDuration(Elapsed(row.at)),
              named
                  ? absl::StrCat(", ", StatisticsName(result.statistics),
                                 " statistics of step ", record.version.value())
                  : "")
       << std::flush;
}

void RunRecorder::PrintProgress(const StatusView& status, Instant now) {
  const absl::Duration interval =
      options_.terminal ? kTerminalInterval : kLineInterval;
  if (status.ended ||
      (last_print_.has_value() && now - *last_print_ < interval)) {
    return;
  }
  last_print_ = now;
  const std::string text = ProgressText(status, rate_.per_second());
  if (options_.terminal) {
    line_.Show(text, TerminalSize().columns);
  } else {
    out_ << text << '\n' << std::flush;
  }
}

}  // namespace cohort
