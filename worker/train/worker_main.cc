// cohort-worker: computes gradients for a Cohort server.

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/log/log.h"
#include "common/periodic_task.h"
#include "common/process/command_line.h"
#include "common/process/signal_watcher.h"
#include "common/status_macros.h"
#include "kernels/backend.h"
#include "worker/client/client.h"
#include "worker/client/model_reader.h"
#include "worker/datasets/dataset.h"
#include "worker/datasets/options.h"
#include "worker/models/model.h"
#include "worker/train/batch_share.h"
#include "worker/train/scoring.h"
#include "worker/train/threads.h"
#include "worker/train/trainer.h"

ABSL_FLAG(std::string, server, "127.0.0.1:7070", "host:port of the server");
ABSL_FLAG(int32_t, rank, -1,
          "rank to take, 0 to workers-1; -1: the lowest vacant one");
ABSL_FLAG(std::string, model, "cnn", "network to train: cnn or smooth");
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
ABSL_FLAG(int64_t, batch_size, 64, "images of this worker in one step");
ABSL_FLAG(double, share, 1,
          "multiplies --batch_size: 2 for a worker twice as fast");
ABSL_FLAG(int64_t, accumulate, 1,
          "parts that the images of a step are computed in, one after another, "
          "each a batch of its own to batch norm; the same number on all "
          "workers");
ABSL_FLAG(std::string, device, "cpu", "where to compute: cpu");
ABSL_FLAG(int32_t, threads, 1,
          "threads of this worker's arithmetic; results are the same to the "
          "bit only for the same number");
ABSL_FLAG(absl::Duration, server_timeout, absl::Minutes(5),
          "how long an unreachable server is waited for");
ABSL_FLAG(bool, evaluate, false,
          "score the newest version of a live run on the test split, without "
          "joining the run, and end");

namespace cohort {
namespace {

// How long a stopped worker may take to finish its step before it hands it
// back.
constexpr absl::Duration kStopGrace = absl::Seconds(5);
// More than any machine has use for.
constexpr int32_t kLoaderThreadsMax = 256;

const ProgramText kProgram = {
    .name = "cohort-worker",
    .summary = "Computes gradients for a Cohort server.",
    .examples = {"cohort-worker --server=127.0.0.1:7070 --batch_size=64",
                 "cohort-worker --server=10.0.0.1:7070 --rank=1 "
                 "--dataset=synthetic",
                 "cohort-worker --server=127.0.0.1:7070 --dataset=voc "
                 "--data_dir=camvid --image_size=180x240 --batch_size=2",
                 "cohort-worker --server=127.0.0.1:7070 --evaluate"}};

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
  if (absl::GetFlag(FLAGS_device) != "cpu") {
    return absl::InvalidArgumentError(
        absl::StrCat("--device: got ", absl::GetFlag(FLAGS_device),
                     ", want cpu (this build has no other)"));
  }
  return absl::OkStatus();
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

absl::StatusOr<std::unique_ptr<Dataset>> DatasetFromFlags() {
  COHORT_ASSIGN_OR_RETURN(const DatasetOptions options,
                          DatasetOptionsFromFlags());
  return MakeDataset(options);
}

ClientOptions ClientOptionsFromFlags(int64_t samples) {
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
  options.fingerprint = absl::StrCat(
      LibraryVersions(), ", ", std::string(kernels::CpuBackend().name()), ", ",
      absl::GetFlag(FLAGS_threads), " threads");
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

absl::StatusOr<std::shared_ptr<Model>> ModelFor(const Dataset& dataset,
                                                uint64_t seed) {
  return MakeModel({.name = absl::GetFlag(FLAGS_model),
                    .channels = dataset.channels(),
                    .classes = dataset.classes(),
                    .seed = seed});
}

int RunEvaluation(const Dataset& dataset, Model& model) {
  const absl::StatusOr<std::unique_ptr<ModelReader>> reader =
      MakeModelReader({.server = absl::GetFlag(FLAGS_server),
                       .server_timeout = absl::GetFlag(FLAGS_server_timeout),
                       .backoff_seed = static_cast<uint64_t>(getpid())});
  if (!reader.ok()) return Fail(reader.status(), kExitConfig);
  const absl::StatusOr<VersionScore> score =
      ScoreNewest(**reader, model, dataset);
  if (!score.ok()) return Fail(score.status(), ExitCodeForRun(score.status()));
  const EvaluationSums& sums = score->sums;
  std::cout << absl::StrFormat("version %d: test loss %.4f, accuracy %.1f %%\n",
                               score->version.value(),
                               sums.loss_sum / sums.loss_weight,
                               100.0 * static_cast<double>(sums.correct) /
                                   static_cast<double>(sums.labels));
  return kExitOk;
}

int RunWorker() {
  SetArithmeticThreads(absl::GetFlag(FLAGS_threads));
  const absl::StatusOr<std::unique_ptr<Dataset>> dataset = DatasetFromFlags();
  if (!dataset.ok()) return Fail(dataset.status(), kExitConfig);
  const absl::StatusOr<int64_t> samples = SamplesFromFlags();
  if (!samples.ok()) return Fail(samples.status(), kExitConfig);
  // A name that is not known is told before a server is looked for.
  const auto model = ModelFor(**dataset, 0);
  if (!model.ok()) return Fail(model.status(), kExitConfig);
  if (absl::GetFlag(FLAGS_evaluate)) return RunEvaluation(**dataset, **model);

  absl::StatusOr<std::unique_ptr<Client>> client =
      MakeGrpcClient(ClientOptionsFromFlags(*samples));
  if (!client.ok()) return Fail(client.status(), kExitConfig);
  (*client)->SetObserver(
      [](const std::string& text) { Log(LogLevel::kInfo, text); });
  Trainer trainer(
      **client, **dataset,
      {.make_model = [&](uint64_t seed) { return ModelFor(**dataset, seed); },
       .batch_size = *samples,
       .accumulate = absl::GetFlag(FLAGS_accumulate),
       .loader_threads = absl::GetFlag(FLAGS_loader_threads),
       .backend = &kernels::CpuBackend()});
  std::unique_ptr<PeriodicTask> hand_back;
  const SignalWatcher watcher([&](int signal) {
    Log(LogLevel::kInfo,
        absl::StrCat("signal ", signal, ": finishing the step, then leaving"));
    trainer.RequestStop();
    hand_back = std::make_unique<PeriodicTask>(
        "hand-back", kStopGrace, [&client] { (*client)->RequestStop(); });
  });
  const absl::Status status = trainer.Run();
  if (!status.ok()) return Fail(status, ExitCodeForRun(status));
  Log(LogLevel::kInfo, "left");
  return kExitOk;
}

int Main(absl::Span<char* const> arguments) {
  const absl::StatusOr<bool> help = SetFlags(arguments);
  if (!help.ok()) return Fail(help.status(), ExitCodeOf(help.status()));
  if (*help) {
    std::cout << HelpText(kProgram, "worker_main.cc");
    return kExitOk;
  }
  InitLogging({.process = "worker"});
  const absl::Status valid = Validate();
  if (!valid.ok()) return Fail(valid, kExitConfig);
  return RunWorker();
}

}  // namespace
}  // namespace cohort

int main(int argc, char** argv) {
  return cohort::Main(absl::MakeConstSpan(argv, static_cast<size_t>(argc)));
}
