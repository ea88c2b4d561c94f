// cohort-worker: computes gradients for a Cohort server.

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
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
#include "common/formats/file_system.h"
#include "common/formats/trace_file.h"
#include "common/log/log.h"
#include "common/measures/measures.h"
#include "common/ops/http_server.h"
#include "common/ops/ops_routes.h"
#include "common/ops/process_collector.h"
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
#include "worker/metrics/worker_metrics.h"
#include "worker/models/model.h"
#include "worker/models/state_dict.h"
#include "worker/train/batch_share.h"
#include "worker/train/loss.h"
#include "worker/train/scoring.h"
#include "worker/train/threads.h"
#include "worker/train/trainer.h"
#include "worker/train/worker_telemetry.h"

ABSL_FLAG(std::string, server, "127.0.0.1:7070", "host:port of the server");
ABSL_FLAG(int32_t, rank, -1,
          "rank to take, 0 to workers-1; -1: the lowest vacant one");
ABSL_FLAG(std::string, model, "cnn",
          "network to train: cnn, smooth, resnet20, resnet56, resnet18, "
          "resnet50, unet, pspnet, pspnet18, gru-rows, or a TorchScript file "
          "(*.pt)");
ABSL_FLAG(int64_t, width, 0,
          "unet: channels of the first stage; 0: the model's own, 64");
ABSL_FLAG(std::string, init, "",
          "safetensors file with PyTorch's names that weights and moving "
          "statistics begin with; the lowest rank's are used; empty: the "
          "model's own");
ABSL_FLAG(std::string, dataset, "fashion-mnist",
          "data to train on: fashion-mnist, mnist, cifar10, cifar100, voc "
          "(any data set in its layout), imagefolder, synthetic or "
          "synthetic-segmentation");
ABSL_FLAG(std::string, data_dir, "",
          "folder of the data set; empty: its usual place");
ABSL_FLAG(std::string, image_size, "",
          "HEIGHTxWIDTH that images and masks are resized to when they are "
          "loaded; empty: as they are, all of one size");
ABSL_FLAG(int64_t, classes, 0,
          "voc: classes of the masks; 0: as many as they show");
ABSL_FLAG(int64_t, ignore_index, 255,
          "voc: mask value of pixels that do not count; -1: none");
ABSL_FLAG(std::string, augment, "auto",
          "random changes of training samples: none, or some of flip, crop, "
          "scale and jitter, separated by commas; auto: flip,crop for cifar, "
          "all four for voc, none for others; the same on all workers");
ABSL_FLAG(std::string, bad_samples, "stop",
          "what a file that cannot be decoded does: stop (an error that names "
          "it) or skip (left out, with a warning; by all workers alike)");
ABSL_FLAG(int32_t, loader_threads, 1,
          "threads that decode at the start and read training samples ahead; "
          "0: no thread of their own; never changes what is read");
ABSL_FLAG(std::string, order, "shuffled",
          "shuffled: every worker draws from all training images; sorted: from "
          "its own share of them, sorted by class; the same on all workers");
ABSL_FLAG(int64_t, limit, 0,
          "training images of an epoch, drawn anew for each from the run's "
          "seed; 0: all; the same on all workers");
ABSL_FLAG(int64_t, test_limit, 0,
          "test images that the run is evaluated on, spread evenly over the "
          "split; 0: all; the same on all workers");
ABSL_FLAG(int64_t, batch_size, 64, "images of this worker in one step");
ABSL_FLAG(double, share, 1,
          "multiplies --batch_size: 2 for a worker twice as fast");
ABSL_FLAG(int64_t, accumulate, 1,
          "parts that the images of a step are computed in, one after another, "
          "each a batch of its own to batch norm; the same number on all "
          "workers");
ABSL_FLAG(std::string, class_weights, "",
          "weights of the classes in the loss, separated by commas, one a "
          "class; empty: all 1; the same on all workers");
ABSL_FLAG(double, label_smoothing, 0,
          "share of each label that is spread over all classes; the same on "
          "all workers");
ABSL_FLAG(std::string, bn_convention, "pytorch",
          "variance that batch norm's moving statistics hold: pytorch "
          "(unbiased) or keras (biased); the same on all workers");
ABSL_FLAG(std::string, frozen_statistics, "none",
          "batch-norm layers that are normalised by their moving statistics, "
          "which stay as they are: names, or beginnings of names with a *, "
          "separated by commas; the same on all workers");
ABSL_FLAG(std::string, device, "cpu",
          "where to compute: cpu, or cuda:N for GPU number N; several workers "
          "may share a GPU");
ABSL_FLAG(
    std::string, precision, "float32",
    "what convolutions and linear layers compute in: float32, or bfloat16 "
    "by LibTorch's autocast; weights, statistics and gradients are "
    "float32 in either case");
ABSL_FLAG(bool, channels_last, false,
          "let activations lie pixel by pixel (NHWC) instead of plane by plane "
          "(NCHW): what is faster depends on the network and the machine; "
          "results differ in their last bits");
ABSL_FLAG(int32_t, threads, 1,
          "threads of this worker's arithmetic; results are the same to the "
          "bit only for the same number");
ABSL_FLAG(absl::Duration, server_timeout, absl::Minutes(5),
          "how long an unreachable server is waited for");
ABSL_FLAG(std::string, ops_listen, "",
          "host:port of an operations port with /metrics, /livez and /readyz; "
          "port 0 takes a free one; empty: none, because several workers "
          "share a machine");
ABSL_FLAG(bool, insecure, false,
          "let --ops_listen be reached from other machines, unencrypted");
ABSL_FLAG(std::string, trace, "",
          "file that gets the timeline of this process, as Chrome's and "
          "Perfetto's viewers read it; see cohortctl trace merge");
ABSL_FLAG(std::string, log_level, "info",
          "least important lines that are logged: debug, info, warning or "
          "error");
ABSL_FLAG(int32_t, stopped_exit_code, 0,
          "exit code of a worker that leaves before its rank's work is done "
          "(a signal, cohortctl workers drain, a run that broke off), for "
          "starters that take 0 for done and would not replace it");
ABSL_FLAG(bool, evaluate, false,
          "score the newest step of a live run on the test split, without "
          "joining the run, and end");

namespace cohort {
namespace {

// How long a stopped worker may take to finish its step before it hands it
// back.
constexpr absl::Duration kStopGrace = absl::Seconds(5);
// More than any machine has use for.
constexpr int32_t kLoaderThreadsMax = 256;

const Program kProgram = {
    .text = {.name = "cohort-worker",
             .summary = "Computes gradients for a Cohort server.",
             .examples = {"cohort-worker --server=127.0.0.1:7070 "
                          "--batch_size=64",
                          "cohort-worker --server=10.0.0.1:7070 --rank=1 "
                          "--dataset=synthetic",
                          "cohort-worker --server=127.0.0.1:7070 --dataset=voc "
                          "--data_dir=camvid --image_size=180x240 "
                          "--batch_size=2",
                          "cohort-worker --server=127.0.0.1:7070 --evaluate"}},
    .source = "worker_main",
    .role = TaskRole::kWorker};

absl::StatusOr<int64_t> SamplesFromFlags() {
  return SamplesOf({.batch_size = absl::GetFlag(FLAGS_batch_size),
                    .share = absl::GetFlag(FLAGS_share)});
}

absl::Status Validate() {
  if (absl::GetFlag(FLAGS_rank) < -1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rank: got ", absl::GetFlag(FLAGS_rank),
                     ", want 0 or more, or -1 for any"));
  }
  COHORT_ASSIGN_OR_RETURN(const int64_t samples, SamplesFromFlags());
  const int64_t parts = absl::GetFlag(FLAGS_accumulate);
  if (parts < 1 || parts > samples) {
    return absl::InvalidArgumentError(
        absl::StrCat("--accumulate: got ", parts,
                     ", want 1 to --batch_size times --share, ", samples));
  }
  if (absl::GetFlag(FLAGS_loader_threads) < 0 ||
      absl::GetFlag(FLAGS_loader_threads) > kLoaderThreadsMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--loader_threads: got ", absl::GetFlag(FLAGS_loader_threads),
        ", want 0 to ", kLoaderThreadsMax));
  }
  if (absl::GetFlag(FLAGS_threads) < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--threads: got ", absl::GetFlag(FLAGS_threads), ", want 1 or more"));
  }
  COHORT_RETURN_IF_ERROR(CheckExitCode("stopped_exit_code",
                                       absl::GetFlag(FLAGS_stopped_exit_code)));
  const std::string convention = absl::GetFlag(FLAGS_bn_convention);
  if (convention != "pytorch" && convention != "keras") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--bn_convention: got ", convention, ", want pytorch or keras"));
  }
  COHORT_RETURN_IF_ERROR(ParseDevice(absl::GetFlag(FLAGS_device)).status());
  return ParsePrecision(absl::GetFlag(FLAGS_precision)).status();
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
      .loader_threads = std::max(1, absl::GetFlag(FLAGS_loader_threads))};
  if (absl::GetFlag(FLAGS_classes) != 0) {
    options.classes = absl::GetFlag(FLAGS_classes);
  }
  COHORT_ASSIGN_OR_RETURN(options.image_size,
                          ParseImageSize(absl::GetFlag(FLAGS_image_size)));
  COHORT_ASSIGN_OR_RETURN(options.augment,
                          ParseAugmentations(absl::GetFlag(FLAGS_augment)));
  COHORT_ASSIGN_OR_RETURN(options.bad_samples,
                          ParseBadSamples(absl::GetFlag(FLAGS_bad_samples)));
  return options;
}

absl::StatusOr<OrderOptions> OrderFromFlags(const Dataset& dataset) {
  OrderOptions options{.limit = absl::GetFlag(FLAGS_limit),
                       .test_limit = absl::GetFlag(FLAGS_test_limit)};
  COHORT_ASSIGN_OR_RETURN(options.kind,
                          ParseOrderKind(absl::GetFlag(FLAGS_order)));
  COHORT_RETURN_IF_ERROR(CheckFits(options, dataset));
  return options;
}

absl::StatusOr<std::unique_ptr<Dataset>> DatasetFromFlags() {
  COHORT_ASSIGN_OR_RETURN(const DatasetOptions options,
                          DatasetOptionsFromFlags());
  return MakeDataset(options);
}

ClientOptions ClientOptionsFromFlags(int64_t samples,
                                     const ComputeDevice& device) {
  ClientOptions options{.server = absl::GetFlag(FLAGS_server),
                        .batch_size = samples,
                        .server_timeout = absl::GetFlag(FLAGS_server_timeout),
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
      return kExitUnreachable;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kResourceExhausted:
      return kExitConfig;
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
                                     .image_width = dataset.width(),
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

// The measure that a run is judged by stands last.
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
          // Valid by now.
          .precision = *ParsePrecision(absl::GetFlag(FLAGS_precision)),
          .activations = absl::GetFlag(FLAGS_channels_last)
                             ? at::MemoryFormat::ChannelsLast
                             : at::MemoryFormat::Contiguous};
}

int RunEvaluation(const Dataset& dataset, Model& model,
                  const CrossEntropy& loss, const Compute& compute) {
  const absl::StatusOr<std::unique_ptr<ModelReader>> reader =
      MakeModelReader({.server = absl::GetFlag(FLAGS_server),
                       .server_timeout = absl::GetFlag(FLAGS_server_timeout),
                       .backoff_seed = static_cast<uint64_t>(getpid())});
  if (!reader.ok()) return Fail(reader.status(), kExitConfig);
  const absl::StatusOr<VersionScore> score = ScoreNewest(
      **reader, model, dataset, loss, BindingOptionsFromFlags(), compute);
  if (!score.ok()) return Fail(score.status(), ExitCodeForRun(score.status()));
  std::cout << ScoreText(*score);
  return kExitOk;
}

// What others may look at while the worker trains. Null where nobody asked.
struct Surroundings {
  std::unique_ptr<TraceFile> trace;
  std::unique_ptr<WorkerMetrics> metrics;
  std::unique_ptr<WorkerTelemetry> telemetry;
  std::unique_ptr<ProcessCollector> process;
  // Last: shows what is above.
  std::unique_ptr<HttpServer> ops;
};

absl::StatusOr<std::unique_ptr<HttpServer>> StartOps(Surroundings& around) {
  around.process = std::make_unique<ProcessCollector>();
  OpsPages pages{.metrics = around.metrics->collectables(),
                 .ready = [telemetry = around.telemetry.get()] {
                   return telemetry->Ready();
                 }};
  pages.metrics.push_back(around.process.get());
  COHORT_ASSIGN_OR_RETURN(
      std::unique_ptr<HttpServer> ops,
      StartHttpServer({.listen = absl::GetFlag(FLAGS_ops_listen),
                       .insecure = absl::GetFlag(FLAGS_insecure),
                       .routes = OpsRoutes(pages)}));
  Log(LogLevel::kInfo,
      absl::StrCat("operations port: http://", ops->address(), "/metrics"));
  return ops;
}

absl::StatusOr<Surroundings> SurroundingsFromFlags() {
  Surroundings around;
  const std::string trace = absl::GetFlag(FLAGS_trace);
  if (!trace.empty()) {
    absl::StatusOr<std::unique_ptr<TraceFile>> file =
        TraceFile::Create(trace, "worker");
    if (!file.ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat("--trace: ", file.status().message()));
    }
    around.trace = *std::move(file);
  }
  const bool ops = !absl::GetFlag(FLAGS_ops_listen).empty();
  if (ops) {
    around.metrics = std::make_unique<WorkerMetrics>(
        WorkerTelemetry::StateNames(), kRetriedMethods);
  }
  around.telemetry = std::make_unique<WorkerTelemetry>(around.metrics.get(),
                                                       around.trace.get());
  if (ops) {
    COHORT_ASSIGN_OR_RETURN(around.ops, StartOps(around));
  }
  return around;
}

// What is learned from, and towards what.
struct Task {
  const Dataset& dataset;
  const ComputeDevice& device;
  OrderOptions order;
  int64_t samples = 0;
  LossOptions loss;
};

// Joins the run and trains until it is over.
int Train(const Task& task) {
  const absl::StatusOr<Surroundings> around = SurroundingsFromFlags();
  if (!around.ok()) {
    // A port that is in use is no wrong flag.
    return Fail(around.status(), absl::IsUnavailable(around.status())
                                     ? kExitFailure
                                     : kExitConfig);
  }
  ClientOptions client_options =
      ClientOptionsFromFlags(task.samples, task.device);
  client_options.hooks = around->telemetry.get();
  absl::StatusOr<std::unique_ptr<Client>> client =
      MakeGrpcClient(client_options);
  if (!client.ok()) return Fail(client.status(), kExitConfig);
  (*client)->SetObserver(
      [](const std::string& text) { Log(LogLevel::kInfo, text); });
  const std::unique_ptr<kernels::Backend> backend =
      kernels::NewCpuBackend(RunOnArithmeticThreads);
  Trainer trainer(
      **client, task.dataset,
      {.make_model =
           [&](uint64_t seed) { return ModelFor(task.dataset, seed, nullptr); },
       .batch_size = task.samples,
       .accumulate = absl::GetFlag(FLAGS_accumulate),
       .order = task.order,
       .loss = task.loss,
       .loader_threads = absl::GetFlag(FLAGS_loader_threads),
       .evaluation_batch_size = EvaluationBatchSize(task.dataset),
       .batch_norm = BindingOptionsFromFlags(),
       .backend = backend.get(),
       .compute = ComputeFromFlags(task.device),
       .observer = around->telemetry.get(),
       .timeline = around->trace.get()});
  std::unique_ptr<PeriodicTask> hand_back;
  const SignalWatcher watcher([&](int signal) {
    Log(LogLevel::kInfo,
        absl::StrCat("signal ", signal, ": finishing the step, then leaving"));
    trainer.RequestStop();
    hand_back = std::make_unique<PeriodicTask>(
        "hand-back", kStopGrace, [&client] { (*client)->RequestStop(); });
  });
  const absl::Status status = trainer.Run();
  if (around->trace != nullptr && !around->trace->status().ok()) {
    Log(LogLevel::kError, around->trace->status().message());
  }
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
  // What does not fit is told before a server is looked for, and once.
  auto model = ModelFor(**dataset, 0, [](const std::string& text) {
    Log(LogLevel::kWarning, text);
  });
  if (!model.ok()) return Fail(model.status(), kExitConfig);
  const absl::StatusOr<LossOptions> loss_options = LossFromFlags();
  if (!loss_options.ok()) return Fail(loss_options.status(), kExitConfig);
  const absl::StatusOr<CrossEntropy> loss =
      CrossEntropy::Make(*loss_options, (*dataset)->classes());
  if (!loss.ok()) return Fail(loss.status(), kExitConfig);
  if (absl::GetFlag(FLAGS_evaluate)) {
    return RunEvaluation(**dataset, **model, *loss, ComputeFromFlags(*device));
  }
  model->reset();
  TellHowItComputes(*device);
  return Train({.dataset = **dataset,
                .device = *device,
                .order = *order,
                .samples = *samples,
                .loss = *loss_options});
}

int Main(absl::Span<char* const> arguments) {
  ExitOnEarlySignals();
  const std::vector<std::string> environment = Environment();
  const std::optional<ExitCode> answered = ReadFlags(
      kProgram, arguments,
      {.out = std::cout, .err = std::cerr, .environment = environment});
  if (answered.has_value()) return *answered;
  const absl::StatusOr<LogLevel> level =
      ParseLogLevel(absl::GetFlag(FLAGS_log_level));
  if (!level.ok()) {
    return Fail(absl::InvalidArgumentError(
                    absl::StrCat("--log_level: ", level.status().message())),
                kExitConfig);
  }
  InitLogging({.level = *level, .process = "worker"});
  // What goes wrong there comes back as a status, and is told in our words.
  RouteTransportLog(
      [](absl::string_view text) { Log(LogLevel::kDebug, text); });
  const absl::Status valid = Validate();
  if (!valid.ok()) return Fail(valid, kExitConfig);
  const int code = RunWorker();
  FlushLog();
  return code;
}

}  // namespace
}  // namespace cohort

int main(int argc, char** argv) {
  return cohort::Main(absl::MakeConstSpan(argv, static_cast<size_t>(argc)));
}
