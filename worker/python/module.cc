// cohort._core: the C++ side of the Python front-end. Its names are not public;
// the package cohort is the interface.

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/build_info.h"
#include "common/byte_rope.h"
#include "common/departure.h"
#include "common/exit_codes.h"
#include "common/host_memory.h"
#include "common/log/log.h"
#include "common/mutex.h"
#include "common/permutation.h"
#include "common/status_macros.h"
#include "common/thread_pool.h"
#include "kernels/backend.h"
#include "worker/python/batch_norm_calls.h"
#include "worker/python/loader_process.h"
#include "worker/python/moving_buffers.h"
#include "worker/python/values.h"
#include "worker/python/worker_flag.h"
#include "worker/session/host_model.h"
#include "worker/session/worker_session.h"
#include "worker/telemetry/observed_worker.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: nanobind's names of arguments

namespace cohort {
namespace {

// Carries a status to Python, where it is a StatusError of (code, message).
class StatusException : public std::exception {
 public:
  explicit StatusException(absl::Status status) : status_(std::move(status)) {}
  const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;
};

void Check(const absl::Status& status) {
  if (!status.ok()) throw StatusException(status);
}

template <typename T>
T Take(absl::StatusOr<T> value) {
  Check(value.status());
  return *std::move(value);
}

// The class that a status is raised as; set by the package. Never destroyed,
// because the interpreter may be gone by then.
nb::object& StatusError() {
  static auto& type = *new nb::object(nb::borrow(PyExc_RuntimeError));
  return type;
}

// Python objects whose memory the network still read when they were released.
// They are dropped by a thread that holds Python's lock.
class ReleasedObjects {
 public:
  void Add(PyObject* object) {
    const MutexLock lock(mu_);
    objects_.push_back(object);
  }
  // Python's lock must be held.
  void Drop() {
    std::vector<PyObject*> objects;
    {
      const MutexLock lock(mu_);
      objects.swap(objects_);
    }
    for (PyObject* object : objects) Py_DECREF(object);
  }

 private:
  Mutex mu_;
  std::vector<PyObject*> objects_ ABSL_GUARDED_BY(mu_);
};

// Never destroyed, because the network may release memory at any time.
ReleasedObjects& Released() {
  static auto& released = *new ReleasedObjects;
  return released;
}

std::shared_ptr<const void> Own(nb::handle object) {
  Py_INCREF(object.ptr());
  return {object.ptr(), [](const void* owned) {
            Released().Add(
                const_cast<PyObject*>(static_cast<const PyObject*>(owned)));
          }};
}

// Runs ranges of tasks on several threads, this one included.
class ForkJoin {
 public:
  explicit ForkJoin(int32_t threads)
      : threads_(threads),
        pool_({.name = "arithmetic", .threads = std::max(threads - 1, 1)}) {}

  void Run(int64_t tasks, absl::FunctionRef<void(int64_t, int64_t)> run) {
    const int64_t parts = std::min<int64_t>(threads_, tasks);
    Mutex mu;
    CondVar done;
    int64_t running = parts;
    const auto run_part = [&](int64_t part) {
      run(tasks * part / parts, tasks * (part + 1) / parts);
      const MutexLock lock(mu);
      --running;
      done.NotifyAll();
    };
    for (int64_t part = 1; part < parts; ++part) {
      if (!pool_.Submit([&run_part, part] { run_part(part); }).ok()) {
        run_part(part);
      }
    }
    if (parts > 0) run_part(0);
    const MutexLock lock(mu);
    while (running > 0) done.Wait(mu);
  }

 private:
  const int32_t threads_;
  ThreadPool pool_;
};

// The memory of the script's parameters, and of their gradients in this step.
struct ScriptMemory {
  explicit ScriptMemory(std::vector<absl::Span<float>> parameters)
      : gradients(parameters.size()),
        model(std::move(parameters),
              [this](size_t parameter) { return gradients[parameter]; }) {}

  std::vector<HostModel::ParameterGradient> gradients;
  HostModel model;
};

// The operations port and the timeline of a process. The port answers before
// the worker joins and after it has left, because the script has work to do
// then.
class Observation {
 public:
  explicit Observation(const ObservedWorkerOptions& options)
      : worker_(Take(ObservedWorker::Start(options))) {}
  // A forked child has this object, but none of its threads.
  ~Observation() {
    if (getpid() != pid_) static_cast<void>(worker_.release());
  }
  Observation(const Observation&) = delete;
  Observation& operator=(const Observation&) = delete;

  ObservedWorker& worker() { return *worker_; }

 private:
  const pid_t pid_ = getpid();
  std::unique_ptr<ObservedWorker> worker_;
};

// One joined worker, with what computes its batch norm.
class Worker {
 public:
  Worker(const ClientOptions& client, std::shared_ptr<Observation> observation,
         int32_t threads)
      : observation_(std::move(observation)),
        client_(*Take(observed().Connect(client))),
        session_(std::make_unique<WorkerSession>(
            client_, WorkerSession::Options{.observer = &observed().telemetry(),
                                            .timeline = observed().trace(),
                                            .with_statistics = true})) {
    if (threads > 1) {
      fork_join_ = std::make_unique<ForkJoin>(threads);
      threaded_ = kernels::NewCpuBackend(
          [this](int64_t tasks, absl::FunctionRef<void(int64_t, int64_t)> run) {
            fork_join_->Run(tasks, run);
          });
    }
  }

  // A forked child has this object, but none of its threads.
  ~Worker() {
    if (getpid() == pid_) {
      batch_norms_.reset();
      memory_.reset();
      session_.reset();
      observed().Disconnect();
      return;
    }
    static_cast<void>(session_.release());
    static_cast<void>(memory_.release());
    static_cast<void>(fork_join_.release());
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  Client& client() { return client_; }
  WorkerSession& session() { return *session_; }
  BatchNormCalls& batch_norms() { return *batch_norms_; }

  void Register(const ModelLayout& layout, const RunPlan& plan,
                std::vector<absl::Span<float>> parameters,
                const std::vector<LayerStatistics>& statistics) {
    batch_norms_ = std::make_unique<BatchNormCalls>(
        *session_, threaded_ == nullptr ? kernels::CpuBackend() : *threaded_,
        layout.batch_norms);
    memory_ = std::make_unique<ScriptMemory>(std::move(parameters));
    HostModel& model = memory_->model;
    Check(session_->Register(layout, plan, model.Values(), statistics, model));
  }

  void BeginStep(const Assignment& assignment) {
    ForgetGradients();
    session_->Begin(assignment);
    batch_norms_->Begin(assignment);
  }

  void TakeGradient(size_t parameter, HostModel::ParameterGradient gradient) {
    memory_->gradients[parameter] = std::move(gradient);
    const absl::Status sent = session_->Finish(parameter);
    // If the step is void, its end says so.
    if (!sent.ok() && session_->step_status().ok()) Check(sent);
  }

  // False: the step is void.
  bool EndUpdate() {
    const absl::Status ended = session_->EndUpdate();
    ForgetGradients();
    if (!ended.ok() && !WorkerSession::IsVoid(ended)) Check(ended);
    return ended.ok();
  }

  absl::StatusOr<PushVerdict> CloseStep(PushClosing closing) {
    closing.batch_norm_calls = batch_norms_->Counts();
    COHORT_ASSIGN_OR_RETURN(closing.changes, batch_norms_->buffers().Close());
    COHORT_RETURN_IF_ERROR(batch_norms_->SettleLocalSteps(closing.changes));
    closing.moments = batch_norms_->TakeMoments();
    absl::StatusOr<PushVerdict> verdict = session_->Close(std::move(closing));
    End(verdict.status()).IgnoreError();
    if (verdict.ok() && IsApplied(verdict->verdict)) {
      batch_norms_->buffers().Committed();
    }
    return verdict;
  }

  // Returns `status`, which the assignment has ended with.
  absl::Status End(absl::Status status) {
    ForgetGradients();
    session_->End(status);
    return status;
  }

 private:
  // Their memory is then released.
  void ForgetGradients() {
    memory_->gradients.assign(memory_->gradients.size(), {});
  }

  ObservedWorker& observed() { return observation_->worker(); }

  const pid_t pid_ = getpid();
  const std::shared_ptr<Observation> observation_;
  Client& client_;
  std::unique_ptr<WorkerSession> session_;
  // Set by Register.
  std::unique_ptr<ScriptMemory> memory_;
  std::unique_ptr<ForkJoin> fork_join_;
  std::unique_ptr<kernels::Backend> threaded_;
  std::unique_ptr<BatchNormCalls> batch_norms_;
};

ClientOptions MakeClientOptions(const std::string& server, int32_t rank,
                                int64_t batch_size, int64_t batch_size_max,
                                double server_timeout_s,
                                const std::string& fingerprint,
                                const std::string& description) {
  ClientOptions options{
      .server = server,
      .batch_size = batch_size,
      .batch_size_max = batch_size_max,
      .fingerprint = absl::StrCat(fingerprint, ", ",
                                  std::string(kernels::CpuBackend().name())),
      .description = description,
      .build = absl::StrCat("cohort (Python) ", BuildText()),
      .server_timeout = absl::Seconds(server_timeout_s),
      .backoff_seed = static_cast<uint64_t>(getpid())};
  if (rank >= 0) options.rank = Rank(rank);
  return options;
}

PushClosing MakeClosing(
    double loss_sum, int64_t correct, int64_t labels,
    std::optional<nb::bytes> front_end_state,
    const std::map<std::string, std::pair<double, double>>& measures) {
  PushClosing closing{
      .loss_sum = loss_sum, .correct = correct, .labels = labels};
  if (front_end_state.has_value()) {
    closing.front_end_state =
        std::string(front_end_state->c_str(), front_end_state->size());
  }
  for (const auto& [name, value] : measures) {
    closing.measures.push_back(
        {.name = name, .sum = value.first, .weight = value.second});
  }
  return closing;
}

Moments MomentsAt(uintptr_t address, int64_t count, size_t channels) {
  const auto* first = Pointer<double>(address);
  const auto* second = first + channels;
  return {.count = count,
          .first = {first, second},
          .second = {second, second + channels}};
}

void DefineObservation(nb::module_& m) {
  nb::class_<Observation>(m, "Observation")
      .def(
          "__init__",
          [](Observation* self, const std::string& trace,
             const std::string& ops_listen, bool insecure,
             const std::string& tls_cert, const std::string& tls_key,
             const std::string& tls_ca) {
            new (self) Observation(
                {.trace = trace,
                 .ops_listen = ops_listen,
                 .insecure = insecure,
                 .tls = {.cert = tls_cert, .key = tls_key, .ca = tls_ca}});
          },
          "trace"_a, "ops_listen"_a, "insecure"_a, "tls_cert"_a, "tls_key"_a,
          "tls_ca"_a);
  m.def("parse_worker_flag",
        [](const std::string& name, const std::string& text) {
          return Take(ParseWorkerFlag(name, text));
        });
}

void DefineWorker(nb::module_& m) {
  using Released = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<Worker>(m, "Worker")
      .def(
          "__init__",
          [](Worker* self, const std::string& server, int32_t rank,
             int64_t batch_size, int64_t batch_size_max,
             double server_timeout_s, const std::string& fingerprint,
             const std::string& description, const std::string& tls_cert,
             const std::string& tls_key, const std::string& tls_ca,
             int32_t threads, const std::string& local,
             std::shared_ptr<Observation> observation) {
            ClientOptions client =
                MakeClientOptions(server, rank, batch_size, batch_size_max,
                                  server_timeout_s, fingerprint, description);
            client.tls = {.cert = tls_cert, .key = tls_key, .ca = tls_ca};
            client.local = LocalModeNamed(local);
            new (self) Worker(client, std::move(observation), threads);
          },
          "server"_a, "rank"_a, "batch_size"_a, "batch_size_max"_a,
          "server_timeout_s"_a, "fingerprint"_a, "description"_a, "tls_cert"_a,
          "tls_key"_a, "tls_ca"_a, "threads"_a, "local"_a, "observation"_a)
      .def(
          "join", [](Worker& w) { return Take(w.session().Join()); },
          Released())
      .def(
          "register",
          [](Worker& w, const std::vector<ParameterSpec>& parameters,
             const std::vector<BatchNormSpec>& batch_norms, const RunPlan& plan,
             const std::vector<uintptr_t>& memory,
             const std::vector<LayerStatistics>& statistics) {
            std::vector<absl::Span<float>> where;
            for (size_t i = 0; i < memory.size(); ++i) {
              where.emplace_back(
                  Pointer<float>(memory[i]),
                  static_cast<size_t>(ElementCount(parameters[i])));
            }
            w.Register({.parameters = parameters, .batch_norms = batch_norms},
                       plan, std::move(where), statistics);
          },
          Released())
      .def("loss_reference",
           [](Worker& w) { return w.session().loss_reference(); })
      .def(
          "next_assignment",
          [](Worker& w) { return Take(w.session().NextAssignment()); },
          Released())
      .def(
          "read_weights",
          [](Worker& w, const Assignment& assignment) {
            return Take(w.session().ReadWeights(assignment));
          },
          Released())
      .def(
          "read",
          [](Worker& w, std::optional<int64_t> version, bool weights,
             const std::string& kind) {
            PullOptions options{.weights = weights,
                                .statistics = true,
                                .statistics_kind = kind};
            if (version.has_value()) options.version = Version(*version);
            return Take(w.session().Read(options));
          },
          "version"_a.none(), "weights"_a, "kind"_a, Released())
      .def("version",
           [](Worker& w) -> std::optional<int64_t> {
             const std::optional<Version> version = w.session().version();
             if (!version.has_value()) return std::nullopt;
             return version->value();
           })
      .def("begin_step",
           [](Worker& w, const Assignment& a) {
             cohort::Released().Drop();
             w.BeginStep(a);
           })
      .def("begin_part", [](Worker& w) { w.batch_norms().BeginPart(); })
      // Three addresses a layer: mean, variance and number of batches; 0: none.
      .def("attach_statistics",
           [](Worker& w, const std::vector<std::vector<uintptr_t>>& layers) {
             std::vector<MovingBuffers::Place> places;
             for (const std::vector<uintptr_t>& layer : layers) {
               places.push_back({.mean = Pointer<float>(layer.at(0)),
                                 .variance = Pointer<float>(layer.at(1)),
                                 .tracked = Pointer<int64_t>(layer.at(2))});
             }
             w.batch_norms().buffers().Attach(std::move(places));
           })
      .def("load_statistics",
           [](Worker& w) {
             w.batch_norms().buffers().Load(w.session().statistics());
           })
      .def("show_statistics",
           [](Worker& w, const PulledVersion& pulled) {
             w.batch_norms().buffers().Show(pulled.statistics);
           })
      .def("capture_statistics",
           [](Worker& w) { w.batch_norms().buffers().Capture(); })
      .def("note_read",
           [](Worker& w, size_t layer) {
             Check(w.batch_norms().buffers().Read(layer));
           })
      .def(
          "meet",
          [](Worker& w, const std::string& site, std::vector<double> numbers) {
            BatchNormCalls::Meeting met =
                w.batch_norms().Sum(site, std::move(numbers));
            return std::make_tuple(std::move(met.sums), std::move(met.spreads),
                                   met.members);
          },
          Released())
      .def(
          "hold_state",
          [](Worker& w, int64_t version, int64_t moves_from, bool last) {
            return Take(w.client().HoldState({.version = Version(version),
                                              .moves_from = Version(moves_from),
                                              .last = last}));
          },
          "version"_a, "moves_from"_a, "last"_a, Released())
      .def("give_state",
           [](Worker& w, int64_t version, const nb::bytes& state) {
             const absl::string_view bytes(state.c_str(), state.size());
             const nb::gil_scoped_release released;
             Check(w.client().GiveState(Version(version), bytes));
           })
      // Whether it is the initial one; since when the state moves; the bytes.
      .def("take_state",
           [](Worker& w) {
             const TakenState taken = [&w] {
               const nb::gil_scoped_release released;
               return Take(w.client().TakeState());
             }();
             return std::make_tuple(
                 taken.initial, taken.moves_from.value(),
                 nb::bytes(taken.bytes.data(), taken.bytes.size()));
           })
      .def("is_void", [](Worker& w) { return !w.session().step_status().ok(); })
      .def(
          "forward",
          [](Worker& w, const std::vector<BatchNormCalls::ForwardArgs>& calls) {
            std::vector<KeptCall> saved;
            for (auto& call : w.batch_norms().Forward(calls)) {
              saved.push_back({.call = std::move(call)});
            }
            return saved;
          },
          Released())
      .def(
          "repeat",
          [](Worker& w, const BatchNormCalls::ForwardArgs& call) {
            return KeptCall{Take(w.batch_norms().Repeat(call))};
          },
          Released())
      .def(
          "backward",
          [](Worker& w,
             const std::vector<BatchNormCalls::BackwardArgs>& calls) {
            w.batch_norms().Backward(calls);
          },
          Released())
      // Calls that are computed elsewhere. Two rows of `channels` float64
      // numbers at `moments`: mean and sum of squared differences; in the
      // backward pass the two sums, which those of all members replace.
      .def(
          "meet",
          [](Worker& w, int32_t layer, const std::string& site, double epsilon,
             int64_t count, size_t channels,
             const std::vector<int64_t>& extents, uintptr_t moments,
             const MovingBuffers::Update& update) {
            std::vector<BatchNormCalls::LocalCall> calls(1);
            calls[0] = {.call = {.layer = layer,
                                 .site = site,
                                 .epsilon = epsilon,
                                 .extents = extents,
                                 .update = update},
                        .moments = MomentsAt(moments, count, channels)};
            return KeptCall{w.batch_norms().Meet(std::move(calls))[0]};
          },
          Released())
      .def(
          "recall",
          [](Worker& w, int32_t layer, int64_t count, size_t channels,
             uintptr_t moments, double tolerance) {
            return KeptCall{Take(w.batch_norms().Recall(
                layer, MomentsAt(moments, count, channels), tolerance))};
          },
          Released())
      .def(
          "meet_backward",
          [](Worker& w, const KeptCall& saved, const std::vector<int32_t>& path,
             int64_t count, size_t channels, uintptr_t sums) {
            std::vector<BatchNormCalls::LocalSums> calls(1);
            calls[0] = {.saved = saved.call,
                        .path = path,
                        .sums = MomentsAt(sums, count, channels)};
            const std::vector<Moments> all =
                w.batch_norms().MeetBackward(std::move(calls));
            auto* out = Pointer<double>(sums);
            out = std::copy(all[0].first.begin(), all[0].first.end(), out);
            std::copy(all[0].second.begin(), all[0].second.end(), out);
          },
          Released())
      .def(
          "open_step",
          [](Worker& w, int64_t samples, double loss_weight,
             double gradient_weight, const std::vector<double>& rates,
             const std::vector<std::tuple<int32_t, std::string, double>>&
                 changed,
             uint64_t batch_digest, int32_t optimizer, bool continues) {
            std::vector<GroupNumber> numbers;
            for (const auto& [group, name, value] : changed) {
              numbers.push_back({.group = group, .name = name, .value = value});
            }
            // If the step is void, its end says so.
            w.session()
                .Open({.samples = samples,
                       .loss_weight = loss_weight,
                       .gradient_weight = gradient_weight,
                       .learning_rates = rates,
                       .numbers = std::move(numbers),
                       .batch_digest = batch_digest,
                       .optimizer = optimizer,
                       .continues = continues})
                .IgnoreError();
          },
          Released())
      .def("end_update", &Worker::EndUpdate, Released())
      .def("take_gradient",
           [](Worker& w, size_t parameter, nb::object owner, uintptr_t data) {
             cohort::Released().Drop();
             HostModel::ParameterGradient gradient{.data = Pointer<float>(data),
                                                   .owner = Own(owner)};
             const nb::gil_scoped_release released;
             w.TakeGradient(parameter, std::move(gradient));
           })
      .def(
          "close_step",
          [](Worker& w, double loss_sum, int64_t correct, int64_t labels,
             std::optional<nb::bytes> front_end_state,
             const std::map<std::string, std::pair<double, double>>& measures) {
            PushClosing closing = MakeClosing(loss_sum, correct, labels,
                                              front_end_state, measures);
            absl::StatusOr<PushVerdict> verdict;
            {
              const nb::gil_scoped_release released;
              verdict = w.CloseStep(std::move(closing));
            }
            cohort::Released().Drop();
            return Take(std::move(verdict));
          },
          "loss_sum"_a, "correct"_a, "labels"_a, "front_end_state"_a.none(),
          "measures"_a)
      // False: the last push has to be repeated.
      .def(
          "settle_last_push",
          [](Worker& w, const Assignment& assignment) {
            return Take(w.session().SettleLastPush(assignment)) !=
                   WorkerSession::LastPush::kRepeat;
          },
          Released())
      .def("abandon_step",
           [](Worker& w, const std::string& reason) {
             w.End(absl::AbortedError(reason)).IgnoreError();
           })
      .def(
          "report_evaluation",
          [](Worker& w, const EvaluationSums& sums) {
            Check(w.End(w.session().ReportEvaluation(sums)));
          },
          Released())
      .def(
          "report_moments",
          [](Worker& w) {
            Check(w.End(
                w.session().ReportMoments(w.batch_norms().TakeMoments())));
          },
          Released())
      .def("enter_phase",
           [](Worker& w, int phase) {
             w.session().phases().Enter(static_cast<StepPhase>(phase));
           })
      .def("leave_phase", [](Worker& w) { w.session().phases().Leave(); })
      .def(
          "leave",
          [](Worker& w, const std::string& reason, Departure::Kind kind) {
            w.session().Leave({.reason = reason, .kind = kind});
          },
          "reason"_a, "kind"_a, Released())
      .def(
          "request_stop", [](Worker& w) { w.session().RequestStop(); },
          Released());
}

nb::bytes PermutationBytes(uint64_t seed, int64_t epoch, int64_t n) {
  const std::vector<int64_t> order = EpochPermutation(seed, epoch, n);
  return nb::bytes(order.data(), order.size() * sizeof(int64_t));
}

void StartLog(const std::string& level) {
  InitLogging({.level = Take(ParseLogLevel(level)), .process = "worker"});
  PrepareTransport([](absl::string_view text) { Log(LogLevel::kDebug, text); });
}

// The table of exit codes and the rules of supervisors.
void DefineExitCodes(nb::module_& m) {
  nb::enum_<ExitCode>(m, "ExitCode", nb::is_arithmetic())
      .value("CONFIG", kExitConfig)
      .value("DENIED", kExitDenied)
      .value("UNREACHABLE", kExitUnreachable)
      .value("LEFT", kExitLeft);
  nb::enum_<Departure::Kind>(m, "Departure")
      .value("LEAVES", Departure::Kind::kLeaves)
      .value("DATA_ENDED", Departure::Kind::kDataEnded)
      .value("REFUSED", Departure::Kind::kRefused);
  nb::enum_<AfterLoss>(m, "AfterLoss")
      .value("START_AGAIN", AfterLoss::kStartAgain)
      .value("CONTINUE_WITHOUT", AfterLoss::kContinueWithout)
      .value("STOP_RUN", AfterLoss::kStopRun);
  m.def(
      "why_not_again",
      [](int code, int restarts, int restarts_max, const std::string& limit) {
        return WhyNotAgain(
            {.code = code, .restarts = restarts, .restarts_max = restarts_max},
            limit);
      },
      "code"_a, "restarts"_a, "restarts_max"_a, "limit"_a);
  m.def(
      "after_loss",
      [](bool may_start, bool waits, int workers_min, int others) {
        return DecideAfterLoss(
            may_start, {.waits = waits, .workers_min = workers_min}, others);
      },
      "may_start"_a, "waits"_a, "workers_min"_a, "others"_a);
}

}  // namespace
}  // namespace cohort

NB_MODULE(_core, m) {
  // A job that lives until the interpreter ends is no leak.
  nb::set_leak_warnings(false);
  m.doc() = "The C++ side of the package cohort; not a public interface.";
  nb::register_exception_translator(
      [](const std::exception_ptr& thrown, void*) {
        try {
          std::rethrow_exception(thrown);
        } catch (const cohort::StatusException& e) {
          const absl::Status& status = e.status();
          const nb::tuple arguments =
              nb::make_tuple(absl::StatusCodeToString(status.code()).c_str(),
                             std::string(status.message()));
          PyErr_SetObject(cohort::StatusError().ptr(), arguments.ptr());
        }
      },
      nullptr);
  cohort::DefineValues(m);
  cohort::DefineObservation(m);
  cohort::DefineWorker(m);
  cohort::DefineExitCodes(m);
  m.def("raise_status_as",
        [](nb::object type) { cohort::StatusError() = std::move(type); });
  m.def("permutation", &cohort::PermutationBytes, "seed"_a, "epoch"_a, "n"_a);
  m.def(
      "digest",
      [](uintptr_t data, size_t bytes) {
        return cohort::Xxh3({cohort::Pointer<std::byte>(data), bytes});
      },
      nb::call_guard<nb::gil_scoped_release>());
  m.def("mix_seed", &cohort::MixSeed, "a"_a, "b"_a, "c"_a = 0);
  m.def("start_log", &cohort::StartLog, "level"_a);
  m.def("log", [](const std::string& level, const std::string& text) {
    cohort::Log(cohort::Take(cohort::ParseLogLevel(level)), text);
  });
  m.def("build_text", &cohort::BuildText);
  m.def("keep_freed_memory", &cohort::KeepFreedMemory);
  m.def("bind_loader_process", &cohort::BindLoaderProcess, "parent"_a);
}
