// cohort-load-clients: many clients of the real library, each on a thread of
// its own, for load.py and slow_network.py. They do no arithmetic. Prints, with
// instants in seconds of the machine's steady clock:
//   registered INSTANT           all of them have registered
//   pulled FIRST LAST            they have read the weights once
//   begun VERSION INSTANT        the step of the process's lowest rank
//   answers CALL FIRST LAST      the returns of one rendezvous of a timed step
//   rest CPU TIME 0              beside rank 0: CPU seconds of the server, and
//   push CPU TIME COUNT          seconds, for this many pushes or contributions
//   rendezvous CPU TIME COUNT    of each worker
//   repeated COUNT               assignments that were not carried through

#include <sys/types.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/byte_rope.h"
#include "common/cli/command_line.h"
#include "common/cli/file_limit.h"
#include "common/float_buffer.h"
#include "common/log/log.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "common/thread_pool.h"
#include "worker/client/client.h"

ABSL_FLAG(std::string, address, "", "of the server");
ABSL_FLAG(int32_t, server_process, 0, "its process id");
ABSL_FLAG(int32_t, first_rank, 0, "the lowest rank");
ABSL_FLAG(int32_t, clients, 1, "their number");
ABSL_FLAG(int32_t, layers, 20, "batch-norm layers");
ABSL_FLAG(int64_t, channels, 64, "channels of each layer");
ABSL_FLAG(int64_t, elements, 20'000, "float32 weights");
ABSL_FLAG(int32_t, push_steps, 5, "timed steps that are a push only");
ABSL_FLAG(int32_t, rendezvous_steps, 1, "timed steps with batch norm");
ABSL_FLAG(int32_t, repeats, 1, "calls of each layer in those");
ABSL_FLAG(absl::Duration, rest, absl::Seconds(2),
          "how long rank 0 keeps all others waiting in the step before those");

namespace cohort::bench {
namespace {

// The steps of a run, in this order.
struct LoadShape {
  int32_t layers = 0;
  int64_t channels = 0;
  int64_t elements = 0;
  int32_t push_steps = 0;
  int32_t rendezvous_steps = 0;
  int32_t repeats = 0;
  absl::Duration rest;

  // Two steps come first: one to warm up, and the one with the rest. One
  // follows, at whose beginning all others are over.
  int32_t first_push_step() const { return 2; }
  int32_t first_rendezvous_step() const {
    return first_push_step() + push_steps;
  }
  int32_t steps() const {
    return first_rendezvous_step() + rendezvous_steps + 1;
  }
};

// The clients of this process.
struct LoadPack {
  std::string server;
  pid_t server_process = 0;
  int32_t first_rank = 0;
  int32_t clients = 0;
  LoadShape shape;
};

// CPU time of another process so far, to the nanosecond; 0 if there is none.
double CpuSecondsOf(pid_t process) {
  clockid_t clock = 0;
  timespec used = {};
  if (clock_getcpuclockid(process, &clock) != 0 ||
      clock_gettime(clock, &used) != 0) {
    return 0;
  }
  return static_cast<double>(used.tv_sec) +
         static_cast<double>(used.tv_nsec) * 1e-9;
}

double Now() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// The first and the last of some instants.
struct Period {
  double first = std::numeric_limits<double>::infinity();
  double last = 0;
  int32_t count = 0;

  void Add(double instant) {
    first = std::min(first, instant);
    last = std::max(last, instant);
    ++count;
  }
};

// CPU time of the server, and time, in seconds.
struct Used {
  double cpu = 0;
  double time = 0;
};

// Shared by the clients of this process.
class Pack {
 public:
  explicit Pack(const LoadPack& load) : load_(load) {
    const LoadShape& shape = load.shape;
    layout_.parameters.push_back({.name = "w", .shape = {shape.elements}});
    for (int32_t i = 0; i < shape.layers; ++i) {
      layout_.batch_norms.push_back({.name = absl::StrCat("bn", i),
                                     .channels = shape.channels,
                                     .affine = false});
    }
    const auto channels = static_cast<size_t>(shape.channels);
    moments_ = {.count = 2,
                .first = std::vector<double>(channels, 1.0),
                .second = std::vector<double>(channels, 1.0)};
    values_.resize(static_cast<size_t>(shape.elements));
  }

  const LoadPack& load() const { return load_; }
  const ModelLayout& layout() const { return layout_; }
  const Moments& moments() const { return moments_; }
  absl::Span<const float> values() const { return values_; }

  // One buffer of zeros is the gradient of all.
  std::vector<ByteRope> Gradients(const Registration& registration)
      ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    for (size_t p = gradients_.size(); p < registration.partitions.size();
         ++p) {
      auto buffer =
          std::make_shared<FloatBuffer>(registration.partitions[p].elements);
      std::fill_n(buffer->data(), buffer->size(), 0.0f);
      gradients_.push_back(RopeOf(buffer));
    }
    return gradients_;
  }

  void Registered() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    registered_.Add(Now());
    if (registered_.count == load_.clients) {
      PrintLocked("registered %.6f", registered_.last);
    }
  }

  void Pulled() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    pulled_.Add(Now());
    if (pulled_.count == load_.clients) {
      PrintLocked("pulled %.6f %.6f", pulled_.first, pulled_.last);
    }
  }

  void Begun(Rank rank, Version version) ABSL_LOCKS_EXCLUDED(mu_) {
    if (rank.value() != load_.first_rank) return;
    MutexLock lock(mu_);
    PrintLocked("begun %d %.6f", version.value(), Now());
  }

  // `call` counts the rendezvous of the run.
  void Answered(int64_t call) ABSL_LOCKS_EXCLUDED(mu_) {
    const double now = Now();
    MutexLock lock(mu_);
    Period& answers = answers_[call];
    answers.Add(now);
    if (answers.count < load_.clients) return;
    PrintLocked("answers %d %.6f %.6f", call, answers.first, answers.last);
    answers_.erase(call);
  }

  // The costs of the server until now.
  Used Server() const {
    return {.cpu = CpuSecondsOf(load_.server_process), .time = Now()};
  }
  void Cost(absl::string_view kind, const Used& begin, double count)
      ABSL_LOCKS_EXCLUDED(mu_) {
    const Used end = Server();
    MutexLock lock(mu_);
    PrintLocked("%s %.9f %.6f %.0f", kind, end.cpu - begin.cpu,
                end.time - begin.time, count);
  }

  void Repeated() { repeated_.fetch_add(1, std::memory_order_relaxed); }

  void Ended(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    if (failure_.ok()) failure_ = status;
  }

  absl::Status End() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    PrintLocked("repeated %d", repeated_.load(std::memory_order_relaxed));
    return failure_;
  }

  // Returns after `time`, during which this thread uses no CPU.
  void Rest(absl::Duration time) ABSL_LOCKS_EXCLUDED(mu_) {
    const SteadyClock clock;
    const Instant end = clock.Now() + time;
    Mutex mu;
    CondVar never;
    MutexLock lock(mu);
    while (never.WaitUntil(mu, clock, end)) {
    }
  }

 private:
  template <typename... Values>
  void PrintLocked(const absl::FormatSpec<Values...>& format,
                   const Values&... values) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    absl::PrintF("%s\n", absl::StrFormat(format, values...));
    std::fflush(stdout);
  }

  // Fixed after construction.
  const LoadPack load_;
  ModelLayout layout_;
  Moments moments_;
  std::vector<float> values_;

  // Synchronises itself: a counter, read once all clients have ended.
  std::atomic<int64_t> repeated_{0};

  Mutex mu_;
  std::vector<ByteRope> gradients_ ABSL_GUARDED_BY(mu_);
  Period registered_ ABSL_GUARDED_BY(mu_);
  Period pulled_ ABSL_GUARDED_BY(mu_);
  std::map<int64_t, Period> answers_ ABSL_GUARDED_BY(mu_);
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
};

// True if the client may continue with its next assignment.
bool IsVoid(const absl::Status& status) {
  return absl::IsAborted(status) || absl::IsUnavailable(status);
}

class LoadClient {
 public:
  LoadClient(Pack& pack, int32_t index)
      : pack_(pack), rank_(pack.load().first_rank + index) {}

  absl::Status Run() {
    COHORT_ASSIGN_OR_RETURN(
        client_, MakeGrpcClient(
                     {.server = pack_.load().server,
                      .rank = rank_,
                      .batch_size = 1,
                      // All would share memory, as no cohort of this size can.
                      .local = LocalMode::kTcp,
                      .backoff_seed = static_cast<uint64_t>(rank_.value())}));
    COHORT_RETURN_IF_ERROR(client_->Join().status());
    COHORT_ASSIGN_OR_RETURN(
        const Registration registration,
        client_->Register(pack_.layout(),
                          {.dataset = "load",
                           .dataset_digest = "0",
                           .train_samples = int64_t{1} << 30},
                          {pack_.values()}, {}));
    gradients_ = pack_.Gradients(registration);
    pack_.Registered();
    COHORT_RETURN_IF_ERROR(client_->Pull({.weights = true}).status());
    pack_.Pulled();
    for (;;) {
      absl::StatusOr<Assignment> next = client_->NextAssignment();
      if (IsVoid(next.status())) continue;
      COHORT_RETURN_IF_ERROR(next.status());
      if (next->kind == AssignmentKind::kFinished) break;
      const absl::Status step = Step(*next);
      if (IsVoid(step)) {
        pack_.Repeated();
        continue;
      }
      COHORT_RETURN_IF_ERROR(step);
    }
    client_->Leave({.reason = "done"});
    return absl::OkStatus();
  }

 private:
  bool measures() const { return rank_ == Rank(0); }

  absl::Status Step(const Assignment& step) {
    const LoadShape& shape = pack_.load().shape;
    const int64_t version = step.version.value();
    pack_.Begun(rank_, step.version);
    if (measures()) NoteBeginning(version);
    const bool pushes_only = version >= shape.first_push_step() &&
                             version < shape.first_rendezvous_step();
    int32_t repeats = pushes_only ? 0 : 1;
    const bool timed =
        version >= shape.first_rendezvous_step() && version < shape.steps() - 1;
    if (timed) repeats = shape.repeats;
    const Used begin = pack_.Server();
    for (const ReducePhase phase :
         {ReducePhase::kForward, ReducePhase::kBackward}) {
      for (int32_t i = 0; i < repeats * shape.layers; ++i) {
        COHORT_RETURN_IF_ERROR(Meet(step, phase, i, timed));
      }
      if (phase == ReducePhase::kForward) {
        COHORT_RETURN_IF_ERROR(client_->OpenPush(
            {.version = step.version, .samples = 1, .loss_weight = 1}));
      }
    }
    if (timed && measures()) {
      pack_.Cost("rendezvous", begin, 2.0 * repeats * shape.layers);
    }
    for (size_t p = 0; p < gradients_.size(); ++p) {
      COHORT_RETURN_IF_ERROR(
          client_->SendGradient(static_cast<int32_t>(p), gradients_[p], {}));
    }
    return client_
        ->ClosePush({.labels = 1,
                     .batch_norm_calls = std::vector<int32_t>(
                         static_cast<size_t>(shape.layers), repeats),
                     .contributions = int64_t{2} * repeats * shape.layers})
        .status();
  }

  // The step before is over, but for answers that other clients have not read.
  void NoteBeginning(int64_t version) {
    const LoadShape& shape = pack_.load().shape;
    if (version == 1) {
      const Used begin = pack_.Server();
      pack_.Rest(shape.rest);
      pack_.Cost("rest", begin, 0);
    } else if (version == shape.first_push_step()) {
      pushes_begun_ = pack_.Server();
    } else if (version == shape.first_rendezvous_step()) {
      pack_.Cost("push", pushes_begun_, shape.push_steps);
    }
  }

  // The i-th rendezvous of a pass.
  absl::Status Meet(const Assignment& step, ReducePhase phase, int32_t i,
                    bool timed) {
    const int32_t layers = pack_.load().shape.layers;
    const bool forward = phase == ReducePhase::kForward;
    Contribution local{
        .place = {.layer = i % layers, .call = i / layers, .phase = phase},
        .moments = pack_.moments()};
    COHORT_RETURN_IF_ERROR(
        client_
            ->Reduce({.step = step.version, .attempt = step.attempt},
                     {std::move(local)})
            .status());
    if (!timed) return absl::OkStatus();
    constexpr int64_t kCallsMax = 1'000'000;
    pack_.Answered((2 * step.version.value() + (forward ? 0 : 1)) * kCallsMax +
                   i);
    return absl::OkStatus();
  }

  Pack& pack_;
  const Rank rank_;
  std::unique_ptr<Client> client_;
  std::vector<ByteRope> gradients_;
  Used pushes_begun_;
};

// Runs the clients to the end of the run.
// Errors: that of the first client that fails.
absl::Status RunClients(const LoadPack& load) {
  Pack pack(load);
  {
    ThreadPool threads({.name = "client", .threads = load.clients});
    for (int32_t i = 0; i < load.clients; ++i) {
      COHORT_RETURN_IF_ERROR(threads.Submit([&pack, i] {
        const absl::Status status = LoadClient(pack, i).Run();
        if (status.ok()) return;
        pack.Ended(absl::Status(
            status.code(), absl::StrCat("rank ", pack.load().first_rank + i,
                                        ": ", status.message())));
      }));
    }
  }
  return pack.End();
}

int Main(absl::Span<char* const> arguments) {
  const absl::StatusOr<HelpRequest> read = SetFlags(arguments);
  if (!read.ok()) {
    absl::FPrintF(stderr, "cohort-load-clients: %s\n", read.status().message());
    return ExitCodeOf(read.status());
  }
  SetLogLevel(LogLevel::kWarning);
  RaiseFileLimit();
  PrepareTransport([](absl::string_view text) { Log(LogLevel::kDebug, text); });
  const absl::Status status = RunClients(
      {.server = absl::GetFlag(FLAGS_address),
       .server_process = absl::GetFlag(FLAGS_server_process),
       .first_rank = absl::GetFlag(FLAGS_first_rank),
       .clients = absl::GetFlag(FLAGS_clients),
       .shape = {.layers = absl::GetFlag(FLAGS_layers),
                 .channels = absl::GetFlag(FLAGS_channels),
                 .elements = absl::GetFlag(FLAGS_elements),
                 .push_steps = absl::GetFlag(FLAGS_push_steps),
                 .rendezvous_steps = absl::GetFlag(FLAGS_rendezvous_steps),
                 .repeats = absl::GetFlag(FLAGS_repeats),
                 .rest = absl::GetFlag(FLAGS_rest)}});
  if (status.ok()) return kExitOk;
  absl::FPrintF(stderr, "cohort-load-clients: %s\n", status.message());
  return kExitFailure;
}

}  // namespace
}  // namespace cohort::bench

int main(int argc, char** argv) {
  return cohort::bench::Main(
      absl::MakeConstSpan(argv, static_cast<size_t>(argc)));
}
