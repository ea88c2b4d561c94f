// cohort-worker: computes gradients for a Cohort server.

#include <unistd.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/build_info.h"
#include "common/cli/command_line.h"
#include "common/cli/environment.h"
#include "common/cli/program.h"
#include "common/cli/signal_watcher.h"
#include "common/flags/flag_table.h"
#include "common/formats/file_system.h"
#include "common/host_memory.h"
#include "common/limits.h"
#include "common/log/log.h"
#include "common/measures/measures.h"
#include "common/periodic_task.h"
#include "common/status_macros.h"
#include "kernels/backend.h"
#include "worker/batch_norm/binding.h"
#include "worker/client/client.h"
#include "worker/client/model_reader.h"
#include "worker/datasets/data_order.h"
#include "worker/datasets/dataset.h"
#include "worker/datasets/options.h"
#include "worker/device/compute_device.h"
#include "worker/device/precision.h"
#include "worker/models/model.h"
#include "worker/models/state_dict.h"
#include "worker/telemetry/observed_worker.h"
#include "worker/train/batch_share.h"
#include "worker/train/loss.h"
#include "worker/train/scoring.h"
#include "worker/train/threads.h"
#include "worker/train/trainer.h"

// Defines one ABSL_FLAG for each row of the table.
#define COHORT_FLAG_SUBJECT(name, heading)
#define COHORT_FLAG(type, name, default_value, limits, help) \
  ABSL_FLAG(type, name, default_value, help);
#include "common/flags/worker_flags.inc"
#undef COHORT_FLAG_SUBJECT
#undef COHORT_FLAG

namespace cohort {
namespace {

// How long a stopped worker may take to finish its step before it gives the
// step back.
constexpr absl::Duration kStopGrace = absl::Seconds(5);

Program WorkerProgram() {
  return {.text = {.name = "cohort-worker",
                   .summary = "computes gradients for a Cohort server",
                   .examples = {"cohort-worker --server=127.0.0.1:7070 "
                                "--batch_size=64",
                                "cohort-worker --server=10.0.0.1:7070 --rank=1 "
                                "--dataset=synthetic",
                                "cohort-worker --server=127.0.0.1:7070 "
                                "--dataset=voc --data_dir=camvid "
                                "--image_size=180x240 --batch_size=2",
                                "cohort-worker --server=127.0.0.1:7070 "
                                "--evaluate"}},
          .flags = WorkerFlagTable()};
}

absl::StatusOr<int64_t> SamplesFromFlags() {
  return SamplesOf({.batch_size = absl::GetFlag(FLAGS_batch_size),
                    .share = absl::GetFlag(FLAGS_share)});
}

absl::Status Validate() {
  COHORT_ASSIGN_OR_RETURN(const int64_t samples, SamplesFromFlags());
  const int64_t parts = absl::GetFlag(FLAGS_accumulate);
  if (parts > samples) {
    return absl::InvalidArgumentError(
        absl::StrCat("--accumulate: got ", parts, ", want 1 to ", samples,
                     " (--batch_size times --share)"));
  }
  const int64_t most = absl::GetFlag(FLAGS_batch_size_max);
  if (most != 0 && most < samples) {
    return absl::InvalidArgumentError(
        absl::StrCat("--batch_size_max: got ", most, ", want 0 or at least ",
                     samples, " (--batch_size times --share)"));
  }
  return ParseDevice(absl::GetFlag(FLAGS_device)).status();
}

LocalOptimizerOptions LocalOptimizerFromFlags() {
  using Kind = LocalOptimizerOptions::Kind;
  const std::string kind = absl::GetFlag(FLAGS_local_optimizer);
  return {.kind = kind == "adamw"      ? Kind::kAdamW
                  : kind == "nesterov" ? Kind::kNesterov
                                       : Kind::kSgd,
          .learning_rate = absl::GetFlag(FLAGS_local_learning_rate),
          .momentum = absl::GetFlag(FLAGS_local_momentum),
          .weight_decay = absl::GetFlag(FLAGS_local_weight_decay)};
}

absl::StatusOr<LossOptions> LossFromFlags() {
  LossOptions options{.label_smoothing = absl::GetFlag(FLAGS_label_smoothing)};
  const std::string text = absl::GetFlag(FLAGS_class_weights);
  if (text.empty()) return options;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    double weight = 0;
    if (!absl::SimpleAtod(part, &weight)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--class_weights: got '", part, "' in '", text,
                       "', want numbers separated by commas"));
    }
    options.class_weights.push_back(weight);
  }
  return options;
}

absl::StatusOr<DatasetOptions> DatasetOptionsFromFlags() {
  DatasetOptions options{
      .name = absl::GetFlag(FLAGS_dataset),
      .data_dir = absl::GetFlag(FLAGS_data_dir),
      .ignore_index = absl::GetFlag(FLAGS_ignore_index),
      .bad_samples = BadSamplesNamed(absl::GetFlag(FLAGS_bad_samples)),
      .loader_threads = std::max(1, absl::GetFlag(FLAGS_loader_threads))};
  if (absl::GetFlag(FLAGS_classes) != 0) {
    options.classes = absl::GetFlag(FLAGS_classes);
  }
  COHORT_ASSIGN_OR_RETURN(options.image_size,
                          ParseImageSize(absl::GetFlag(FLAGS_image_size)));
  COHORT_ASSIGN_OR_RETURN(options.augment,
                          ParseAugmentations(absl::GetFlag(FLAGS_augment)));
  return options;
}

absl::StatusOr<OrderOptions> OrderFromFlags(const Dataset& dataset) {
  const OrderOptions options{.kind = OrderKindNamed(absl::GetFlag(FLAGS_order)),
                             .limit = absl::GetFlag(FLAGS_limit),
                             .test_limit = absl::GetFlag(FLAGS_test_limit)};
  COHORT_RETURN_IF_ERROR(CheckFits(options, dataset));
  return options;
}

absl::StatusOr<std::unique_ptr<Dataset>> DatasetFromFlags() {
  COHORT_ASSIGN_OR_RETURN(const DatasetOptions options,
                          DatasetOptionsFromFlags());
  return MakeDataset(options);
}

TlsFiles TlsFromFlags() {
  return {.cert = absl::GetFlag(FLAGS_tls_cert),
          .key = absl::GetFlag(FLAGS_tls_key),
          .ca = absl::GetFlag(FLAGS_tls_ca)};
}

ClientOptions ClientOptionsFromFlags(int64_t samples,
                                     const ComputeDevice& device) {
  ClientOptions options{.server = absl::GetFlag(FLAGS_server),
                        .tls = TlsFromFlags(),
                        .batch_size = samples,
                        .batch_size_max = absl::GetFlag(FLAGS_batch_size_max),
                        .server_timeout = absl::GetFlag(FLAGS_server_timeout),
                        .local = LocalModeNamed(absl::GetFlag(FLAGS_local)),
                        .backoff_seed = static_cast<uint64_t>(getpid())};
  if (absl::GetFlag(FLAGS_rank) >= 0) {
    options.rank = Rank(absl::GetFlag(FLAGS_rank));
  }
  std::string host(256, '\0');
  if (gethostname(host.data(), host.size() - 1) != 0) host = "unknown host";
  options.description =
      absl::StrCat(host.c_str(), ", process ", static_cast<int64_t>(getpid()));
  options.build = BuildText();
  options.fingerprint = absl::StrCat(
      LibraryVersions(), ", ", std::string(kernels::CpuBackend().name()), ", ",
      absl::GetFlag(FLAGS_threads), " threads");
  if (device.accelerator != nullptr) {
    absl::StrAppend(&options.fingerprint, ", ", device.name());
  }
  if (absl::GetFlag(FLAGS_precision) != "float32") {
    absl::StrAppend(&options.fingerprint, ", ", absl::GetFlag(FLAGS_precision));
  }
  if (absl::GetFlag(FLAGS_channels_last)) {
    absl::StrAppend(&options.fingerprint, ", channels_last");
  }
  return options;
}

BindingOptions BindingOptionsFromFlags() {
  BindingOptions options;
  if (absl::GetFlag(FLAGS_bn_convention) == "keras") {
    options.convention = StatisticsConvention::kKeras;
  }
  const std::string frozen = absl::GetFlag(FLAGS_frozen_statistics);
  if (frozen != "none") {
    options.frozen_statistics = absl::StrSplit(frozen, ',', absl::SkipEmpty());
  }
  return options;
}

int ExitCodeForRun(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnavailable:
    // The server of this worker's run is gone.
    case absl::StatusCode::kNotFound:
      return kExitUnreachable;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kResourceExhausted:
    // The address is that of another program, or of a data shard.
    case absl::StatusCode::kUnimplemented:
      return kExitConfig;
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return kExitDenied;
    default:
      return kExitFailure;
  }
}

int Fail(const absl::Status& status, int code) {
  std::cerr << "cohort-worker: " << status.message() << "\n";
  return code;
}

using WarnFunction = std::function<void(const std::string&)>;

absl::StatusOr<std::shared_ptr<Model>> ModelFor(const Dataset& dataset,
                                                uint64_t seed,
                                                const WarnFunction& warn) {
  COHORT_ASSIGN_OR_RETURN(std::shared_ptr<Model> model,
                          MakeModel({.name = absl::GetFlag(FLAGS_model),
                                     .channels = dataset.channels(),
                                     .classes = dataset.classes(),
                                     .width = absl::GetFlag(FLAGS_width),
                                     .seed = seed,
                                     .warn = warn}));
  const std::string init = absl::GetFlag(FLAGS_init);
  if (!init.empty()) {
    const absl::Status loaded = LoadStateDict(RealFileSystem(), init, *model);
    if (!loaded.ok()) {
      return absl::Status(loaded.code(),
                          absl::StrCat("--init: ", loaded.message()));
    }
  }
  return model;
}

// The main measure of the task comes last.
std::string ScoreText(const VersionScore& score) {
  const EvaluationSums& sums = score.sums;
  std::string text;
  for (const std::string& iou : ClassIouTexts(sums)) {
    absl::StrAppend(&text, "test ", iou, "\n");
  }
  const std::string side = SideMeasureText(sums);
  absl::StrAppendFormat(&text, "step %d: test loss %.4f, %s%s%s\n",
                        score.version.value(), MeanLoss(sums), side,
                        side.empty() ? "" : ", ", MainMeasureText(sums));
  return text;
}

Compute ComputeFromFlags(const ComputeDevice& device) {
  return {.torch = device.torch,
          .accelerator = device.accelerator.get(),
          .pinned = device.pinned.get(),
          .precision = PrecisionNamed(absl::GetFlag(FLAGS_precision)),
          .activations = absl::GetFlag(FLAGS_channels_last)
                             ? at::MemoryFormat::ChannelsLast
                             : at::MemoryFormat::Contiguous};
}

int RunEvaluation(const Dataset& dataset, Model& model,
                  const CrossEntropy& loss, const Compute& compute) {
  const absl::StatusOr<VersionScore> score =
      ScoreNewest({.server = absl::GetFlag(FLAGS_server),
                   .tls = TlsFromFlags(),
                   .server_timeout = absl::GetFlag(FLAGS_server_timeout),
                   .backoff_seed = static_cast<uint64_t>(getpid())},
                  model, dataset, loss, BindingOptionsFromFlags(), compute);
  if (!score.ok()) return Fail(score.status(), ExitCodeForRun(score.status()));
  std::cout << ScoreText(*score);
  return kExitOk;
}

// The training task: data, device and loss.
struct Task {
  const Dataset& dataset;
  const ComputeDevice& device;
  OrderOptions order;
  int64_t samples = 0;
  LossOptions loss;
  std::vector<ParameterGroup> groups;
};

// Joins the run and trains until it is over.
int Train(const Task& task) {
  const absl::StatusOr<std::unique_ptr<ObservedWorker>> observed =
      ObservedWorker::Start({.trace = absl::GetFlag(FLAGS_trace),
                             .exchange_log = absl::GetFlag(FLAGS_exchange_log),
                             .ops_listen = absl::GetFlag(FLAGS_ops_listen),
                             .insecure = absl::GetFlag(FLAGS_insecure),
                             .tls = TlsFromFlags()});
  if (!observed.ok()) {
    // A port that is in use is not a configuration error.
    return Fail(observed.status(), absl::IsUnavailable(observed.status())
                                       ? kExitFailure
                                       : kExitConfig);
  }
  const absl::StatusOr<Client*> client =
      (*observed)->Connect(ClientOptionsFromFlags(task.samples, task.device));
  if (!client.ok()) return Fail(client.status(), kExitConfig);
  const std::unique_ptr<kernels::Backend> backend =
      kernels::NewCpuBackend(RunOnArithmeticThreads);
  Trainer trainer(
      **client, task.dataset,
      {.make_model =
           [&](uint64_t seed) { return ModelFor(task.dataset, seed, nullptr); },
       .batch_size = task.samples,
       .accumulate = absl::GetFlag(FLAGS_accumulate),
       .local_optimizer = LocalOptimizerFromFlags(),
       .order = task.order,
       .groups = task.groups,
       .loss = task.loss,
       .loader_threads = absl::GetFlag(FLAGS_loader_threads),
       .evaluation_batch_size = EvaluationBatchSize(task.dataset),
       .batch_norm = BindingOptionsFromFlags(),
       .backend = backend.get(),
       .compute = ComputeFromFlags(task.device),
       .observer = &(*observed)->telemetry(),
       .timeline = (*observed)->trace()});
  std::unique_ptr<PeriodicTask> hand_back;
  const SignalWatcher watcher([&](int signal) {
    Log(LogLevel::kInfo,
        absl::StrCat("signal ", signal,
                     ": leaving after the step in progress, if there is one"));
    trainer.RequestStop();
    hand_back = std::make_unique<PeriodicTask>(
        "hand-back", kStopGrace, [&client] { (*client)->RequestStop(); });
  });
  const absl::Status status = trainer.Run();
  const absl::Status traced = (*observed)->trace_status();
  if (!traced.ok()) Log(LogLevel::kError, traced.message());
  if (!status.ok()) return Fail(status, ExitCodeForRun(status));
  Log(LogLevel::kInfo, "left");
  return trainer.left_early() ? absl::GetFlag(FLAGS_stopped_exit_code)
                              : int{kExitOk};
}

void TellHowItComputes(const ComputeDevice& device) {
  const int32_t threads = absl::GetFlag(FLAGS_threads);
  Log(LogLevel::kInfo,
      absl::StrCat(
          "computes on ", device.name(), " with ", threads,
          threads == 1 ? " thread, " : " threads, ",
          absl::GetFlag(FLAGS_precision),
          absl::GetFlag(FLAGS_channels_last) ? ", channels_last" : ""));
}

int RunWorker() {
  SetArithmeticThreads(absl::GetFlag(FLAGS_threads));
  const absl::StatusOr<ComputeDevice> device =
      OpenComputeDevice(absl::GetFlag(FLAGS_device));
  if (!device.ok()) return Fail(device.status(), kExitConfig);
  const absl::StatusOr<std::unique_ptr<Dataset>> dataset = DatasetFromFlags();
  if (!dataset.ok()) return Fail(dataset.status(), kExitConfig);
  const absl::StatusOr<OrderOptions> order = OrderFromFlags(**dataset);
  if (!order.ok()) return Fail(order.status(), kExitConfig);
  const absl::StatusOr<int64_t> samples = SamplesFromFlags();
  if (!samples.ok()) return Fail(samples.status(), kExitConfig);
  // A model that does not fit is reported once, before a server is contacted.
  auto model = ModelFor(**dataset, 0, [](const std::string& text) {
    Log(LogLevel::kWarning, text);
  });
  if (!model.ok()) return Fail(model.status(), kExitConfig);
  const absl::StatusOr<LossOptions> loss_options = LossFromFlags();
  if (!loss_options.ok()) return Fail(loss_options.status(), kExitConfig);
  const absl::StatusOr<CrossEntropy> loss =
      CrossEntropy::Make(*loss_options, (*dataset)->classes());
  if (!loss.ok()) return Fail(loss.status(), kExitConfig);
  const absl::StatusOr<std::vector<ParameterGroup>> groups =
      ParseGroups(absl::GetFlag(FLAGS_groups));
  if (!groups.ok()) return Fail(groups.status(), kExitConfig);
  if (absl::GetFlag(FLAGS_evaluate)) {
    return RunEvaluation(**dataset, **model, *loss, ComputeFromFlags(*device));
  }
  model->reset();
  TellHowItComputes(*device);
  return Train({.dataset = **dataset,
                .device = *device,
                .order = *order,
                .samples = *samples,
                .loss = *loss_options,
                .groups = *groups});
}

int Main(absl::Span<char* const> arguments) {
  ExitOnEarlySignals();
  const std::vector<std::string> environment = Environment();
  const std::optional<ExitCode> answered = ReadFlags(
      WorkerProgram(), arguments,
      {.out = std::cout, .err = std::cerr, .environment = environment});
  if (answered.has_value()) return *answered;
  // Its limits are those of ReadFlags.
  InitLogging({.level = *ParseLogLevel(absl::GetFlag(FLAGS_log_level)),
               .process = "worker"});
  // Transport errors also come back as a status, which is reported in our
  // words.
  PrepareTransport([](absl::string_view text) { Log(LogLevel::kDebug, text); });
  const absl::Status valid = Validate();
  if (!valid.ok()) return Fail(valid, kExitConfig);
  KeepFreedMemory();
  const int code = RunWorker();
  FlushLog();
  return code;
}

}  // namespace
}  // namespace cohort

int main(int argc, char** argv) {
  return cohort::Main(absl::MakeConstSpan(argv, static_cast<size_t>(argc)));
}
