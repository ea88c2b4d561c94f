// cohort._core: the C++ side of the Python front-end. Its names are not public;
// the package cohort is the interface.

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
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
#include "common/log/log.h"
#include "common/mutex.h"
#include "common/permutation.h"
#include "common/thread_pool.h"
#include "kernels/backend.h"
#include "worker/python/batch_norm_calls.h"
#include "worker/python/worker_session.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: nanobind's names of arguments

namespace cohort {
namespace {

// Carries a status to Python, where it is a StatusError(code, message).
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
  return {object.ptr(),
          [](const void* owned) {
            Released().Add(const_cast<PyObject*>(
                static_cast<const PyObject*>(owned)));
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
    int64_t running = 0;
    for (int64_t part = 1; part < parts; ++part) {
      const int64_t begin = tasks * part / parts;
      const int64_t end = tasks * (part + 1) / parts;
      {
        const MutexLock lock(mu);
        ++running;
      }
      const absl::Status submitted = pool_.Submit([&, begin, end] {
        run(begin, end);
        const MutexLock lock(mu);
        --running;
        done.NotifyAll();
      });
      if (submitted.ok()) continue;
      run(begin, end);
      const MutexLock lock(mu);
      --running;
    }
    run(0, parts == 0 ? 0 : tasks / parts);
    const MutexLock lock(mu);
    while (running > 0) done.Wait(mu);
  }

 private:
  const int32_t threads_;
  ThreadPool pool_;
};

// One joined worker, with what computes its batch norm.
class Worker {
 public:
  Worker(const WorkerSession::Options& options, int32_t threads)
      : session_(Take(WorkerSession::Make(options))) {
    if (threads > 1) {
      fork_join_ = std::make_unique<ForkJoin>(threads);
      threaded_ = kernels::NewCpuBackend(
          [this](int64_t tasks,
                 absl::FunctionRef<void(int64_t, int64_t)> run) {
            fork_join_->Run(tasks, run);
          });
    }
  }

  WorkerSession& session() { return *session_; }
  BatchNormCalls& batch_norms() { return *batch_norms_; }

  void Register(ModelLayout layout, const RunPlan& plan,
                std::vector<WorkerSession::ParameterMemory> memory,
                std::vector<LayerStatistics> statistics) {
    std::vector<std::string> names;
    for (const BatchNormSpec& layer : layout.batch_norms) {
      names.push_back(layer.name);
    }
    batch_norms_ = std::make_unique<BatchNormCalls>(
        *session_,
        threaded_ == nullptr ? kernels::CpuBackend() : *threaded_,
        std::move(names));
    Check(session_->Register(std::move(layout), plan, std::move(memory),
                             std::move(statistics)));
  }

  void BeginStep(const Assignment& assignment) {
    session_->BeginStep(assignment);
    batch_norms_->Begin();
  }

 private:
  const std::unique_ptr<WorkerSession> session_;
  std::unique_ptr<ForkJoin> fork_join_;
  std::unique_ptr<kernels::Backend> threaded_;
  std::unique_ptr<BatchNormCalls> batch_norms_;
};

template <typename T>
T* Pointer(uintptr_t address) {
  return reinterpret_cast<T*>(address);  // NOLINT: Tensor.data_ptr()
}

kernels::DataType TypeNamed(const std::string& name) {
  if (name == "float64") return kernels::DataType::kFloat64;
  if (name == "float16") return kernels::DataType::kFloat16;
  if (name == "bfloat16") return kernels::DataType::kBFloat16;
  return kernels::DataType::kFloat32;
}

// A batch-norm call as Python passes it.
struct ForwardCall {
  int32_t layer = 0;
  double epsilon = 0;
  std::vector<int64_t> shape;
  std::string type;
  uintptr_t x = 0;
  std::string affine_type;
  uintptr_t gamma = 0;
  uintptr_t beta = 0;
  uintptr_t y = 0;

  BatchNormCalls::ForwardArgs args() const {
    return {.layer = layer,
            .epsilon = epsilon,
            .shape = {.outer = shape[0], .channels = shape[1],
                      .inner = shape[2]},
            .type = TypeNamed(type),
            .x = Pointer<void>(x),
            .affine = {.type = TypeNamed(affine_type),
                       .gamma = Pointer<void>(gamma),
                       .beta = Pointer<void>(beta)},
            .y = Pointer<void>(y)};
  }
};

// Handed back to Python between the passes.
struct SavedCall {
  BatchNormCalls::SharedCall call;
};

const char* NameOf(AssignmentKind kind) {
  switch (kind) {
    case AssignmentKind::kTrain:
      return "train";
    case AssignmentKind::kEvaluate:
      return "evaluate";
    case AssignmentKind::kCollectMoments:
      return "collect_moments";
    case AssignmentKind::kFinished:
      return "finished";
    case AssignmentKind::kWait:
      break;
  }
  return "wait";
}

const char* NameOf(Verdict verdict) {
  switch (verdict) {
    case Verdict::kApplied:
      return "applied";
    case Verdict::kDamped:
      return "damped";
    case Verdict::kSkipped:
      return "skipped";
    case Verdict::kDropped:
      return "dropped";
    case Verdict::kRejectedNonfinite:
      break;
  }
  return "rejected_nonfinite";
}

void DefineValues(nb::module_& m) {
  nb::class_<ParameterSpec>(m, "ParameterSpec")
      .def(nb::init<>())
      .def_rw("name", &ParameterSpec::name)
      .def_rw("shape", &ParameterSpec::shape)
      .def_rw("trainable", &ParameterSpec::trainable)
      .def_rw("decay_exempt", &ParameterSpec::decay_exempt)
      .def_rw("rate_multiplier", &ParameterSpec::rate_multiplier)
      .def_rw("decay_multiplier", &ParameterSpec::decay_multiplier)
      .def_rw("rate_group", &ParameterSpec::rate_group);
  nb::class_<BatchNormSpec>(m, "BatchNormSpec")
      .def(nb::init<>())
      .def_rw("name", &BatchNormSpec::name)
      .def_rw("channels", &BatchNormSpec::channels)
      .def_rw("epsilon", &BatchNormSpec::epsilon)
      .def_rw("momentum", &BatchNormSpec::momentum, nb::arg().none())
      .def_rw("affine", &BatchNormSpec::affine)
      .def_rw("track_statistics", &BatchNormSpec::track_statistics);
  nb::class_<LayerStatistics>(m, "LayerStatistics")
      .def(nb::init<>())
      .def_rw("mean", &LayerStatistics::mean)
      .def_rw("variance", &LayerStatistics::variance)
      .def_rw("num_batches_tracked", &LayerStatistics::num_batches_tracked);
  nb::class_<RunPlan>(m, "RunPlan")
      .def(nb::init<>())
      .def_rw("dataset", &RunPlan::dataset)
      .def_rw("dataset_digest", &RunPlan::dataset_digest)
      .def_rw("train_samples", &RunPlan::train_samples)
      .def_rw("test_samples", &RunPlan::test_samples)
      .def_rw("loss_reference", &RunPlan::loss_reference)
      .def_rw("loss", &RunPlan::loss)
      .def_rw("own_data", &RunPlan::own_data)
      .def_rw("rates_by_workers", &RunPlan::rates_by_workers)
      .def_rw("optimizer", &RunPlan::optimizer);
  nb::class_<Assignment>(m, "Assignment")
      .def_prop_ro("kind", [](const Assignment& a) { return NameOf(a.kind); })
      .def_prop_ro("sequence",
                   [](const Assignment& a) { return a.sequence.value(); })
      .def_prop_ro("attempt",
                   [](const Assignment& a) { return a.attempt.value(); })
      .def_prop_ro("version",
                   [](const Assignment& a) { return a.version.value(); })
      .def_ro("data_epoch", &Assignment::data_epoch)
      .def_prop_ro("begin", [](const Assignment& a) { return a.range.begin; })
      .def_prop_ro("end", [](const Assignment& a) { return a.range.end; })
      .def_prop_ro("test",
                   [](const Assignment& a) {
                     return a.split == DataSplit::kTest;
                   })
      .def_ro("statistics", &Assignment::statistics)
      .def_ro("global_normalization", &Assignment::global_normalization)
      .def_ro("reason", &Assignment::reason)
      .def_ro("unfinished", &Assignment::unfinished);
  nb::class_<PushVerdict>(m, "PushVerdict")
      .def_prop_ro("verdict",
                   [](const PushVerdict& v) { return NameOf(v.verdict); })
      .def_prop_ro("version",
                   [](const PushVerdict& v) { return v.version.value(); })
      .def_ro("reason", &PushVerdict::reason);
  nb::class_<ClassSums>(m, "ClassSums")
      .def(nb::init<>())
      .def_rw("intersection", &ClassSums::intersection)
      .def_rw("predicted", &ClassSums::predicted)
      .def_rw("actual", &ClassSums::actual);
  nb::class_<EvaluationSums>(m, "EvaluationSums")
      .def(nb::init<>())
      .def_rw("samples", &EvaluationSums::samples)
      .def_rw("loss_sum", &EvaluationSums::loss_sum)
      .def_rw("loss_weight", &EvaluationSums::loss_weight)
      .def_rw("correct", &EvaluationSums::correct)
      .def_rw("labels", &EvaluationSums::labels)
      .def_rw("top5_correct", &EvaluationSums::top5_correct, nb::arg().none())
      .def_rw("classes", &EvaluationSums::classes);
  nb::class_<Membership>(m, "Membership")
      .def_prop_ro("rank", [](const Membership& j) { return j.rank.value(); })
      .def_ro("run_id", &Membership::run_id)
      .def_ro("run_name", &Membership::run_name)
      .def_prop_ro("incarnation",
                   [](const Membership& j) { return j.incarnation.value(); })
      .def_ro("seed", &Membership::seed)
      .def_prop_ro("version",
                   [](const Membership& j) { return j.version.value(); })
      .def_ro("workers", &Membership::workers)
      .def_ro("policy", &Membership::policy);
  nb::class_<WorkerSession::Pulled>(m, "Pulled")
      .def_prop_ro("version",
                   [](const WorkerSession::Pulled& p) {
                     return p.version.value();
                   })
      .def_ro("statistics", &WorkerSession::Pulled::statistics)
      .def_prop_ro("front_end_state", [](const WorkerSession::Pulled& p) {
        return nb::bytes(p.front_end_state.data(), p.front_end_state.size());
      });
  nb::class_<SavedCall>(m, "SavedCall")
      .def_prop_ro("call", [](const SavedCall& s) { return s.call->call; })
      .def_prop_ro("count", [](const SavedCall& s) { return s.call->count; });
  nb::class_<ForwardCall>(m, "ForwardCall")
      .def(nb::init<int32_t, double, std::vector<int64_t>, std::string,
                    uintptr_t, std::string, uintptr_t, uintptr_t, uintptr_t>());
}

ClientOptions MakeClientOptions(const std::string& server, int32_t rank,
                                int64_t batch_size, double server_timeout_s,
                                const std::string& fingerprint,
                                const std::string& description) {
  ClientOptions options{
      .server = server,
      .batch_size = batch_size,
      .fingerprint = absl::StrCat(fingerprint, ", ",
                                  std::string(kernels::CpuBackend().name())),
      .description = description,
      .build = absl::StrCat("cohort (Python) ", BuildText()),
      .server_timeout = absl::Seconds(server_timeout_s),
      .backoff_seed = static_cast<uint64_t>(getpid())};
  if (rank >= 0) options.rank = Rank(rank);
  return options;
}

PushClosing MakeClosing(double loss_sum, int64_t correct, int64_t labels,
                        std::optional<nb::bytes> front_end_state,
                        const std::map<std::string, std::pair<double, double>>&
                            measures) {
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

void DefineWorker(nb::module_& m) {
  using Released = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<Worker>(m, "Worker")
      .def(
          "__init__",
          [](Worker* self, const std::string& server, int32_t rank,
             int64_t batch_size, double server_timeout_s,
             const std::string& fingerprint, const std::string& description,
             const std::string& trace, const std::string& ops_listen,
             bool insecure, int32_t threads) {
            new (self) Worker(
                {.client = MakeClientOptions(server, rank, batch_size,
                                             server_timeout_s, fingerprint,
                                             description),
                 .observed = {.trace = trace,
                              .ops_listen = ops_listen,
                              .insecure = insecure}},
                threads);
          },
          "server"_a, "rank"_a, "batch_size"_a, "server_timeout_s"_a,
          "fingerprint"_a, "description"_a, "trace"_a, "ops_listen"_a,
          "insecure"_a, "threads"_a)
      .def("join", [](Worker& w) { return Take(w.session().Join()); },
           Released())
      .def(
          "register",
          [](Worker& w, const std::vector<ParameterSpec>& parameters,
             const std::vector<BatchNormSpec>& batch_norms, const RunPlan& plan,
             const std::vector<uintptr_t>& memory,
             const std::vector<LayerStatistics>& statistics) {
            ModelLayout layout{.parameters = parameters,
                               .batch_norms = batch_norms};
            std::vector<WorkerSession::ParameterMemory> where;
            for (size_t i = 0; i < memory.size(); ++i) {
              where.push_back({.data = Pointer<float>(memory[i]),
                               .elements = ElementCount(parameters[i])});
            }
            w.Register(std::move(layout), plan, std::move(where), statistics);
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
             const std::optional<Version>& version = w.session().version();
             if (!version.has_value()) return std::nullopt;
             return version->value();
           })
      .def("begin_step", [](Worker& w, const Assignment& a) {
        cohort::Released().Drop();
        w.BeginStep(a);
      })
      .def("step_status",
           [](Worker& w) {
             const absl::Status& status = w.session().step_status();
             return std::make_pair(
                 std::string(absl::StatusCodeToString(status.code())),
                 std::string(status.message()));
           })
      .def(
          "forward",
          [](Worker& w, const std::vector<ForwardCall>& calls) {
            std::vector<BatchNormCalls::ForwardArgs> args;
            for (const ForwardCall& call : calls) args.push_back(call.args());
            std::vector<SavedCall> saved;
            for (auto& call : w.batch_norms().Forward(args)) {
              saved.push_back({.call = std::move(call)});
            }
            return saved;
          },
          Released())
      .def(
          "repeat",
          [](Worker& w, const ForwardCall& call) {
            return SavedCall{Take(w.batch_norms().Repeat(call.args()))};
          },
          Released())
      .def(
          "backward",
          [](Worker& w, const SavedCall& saved, uintptr_t x, uintptr_t dy,
             const std::string& affine_type, uintptr_t gamma, bool needs_dx,
             uintptr_t dx) {
            const BatchNormCalls::BackwardArgs args[] = {
                {.saved = saved.call,
                 .x = Pointer<void>(x),
                 .dy = Pointer<void>(dy),
                 .affine = {.type = TypeNamed(affine_type),
                            .gamma = Pointer<void>(gamma)},
                 .needs_dx = needs_dx,
                 .dx = Pointer<void>(dx)}};
            auto gradients = w.batch_norms().Backward(args);
            return std::make_pair(std::move(gradients[0].gamma),
                                  std::move(gradients[0].beta));
          },
          Released())
      .def(
          "open_step",
          [](Worker& w, int64_t samples, double loss_weight,
             const std::vector<double>& rates) {
            w.session().OpenStep({.samples = samples,
                                  .loss_weight = loss_weight,
                                  .learning_rates = rates});
          },
          Released())
      .def("take_gradient",
           [](Worker& w, size_t parameter, nb::object owner, uintptr_t data) {
             cohort::Released().Drop();
             WorkerSession::Gradient gradient{.data = Pointer<float>(data),
                                              .owner = Own(owner)};
             const nb::gil_scoped_release released;
             Check(w.session().TakeGradient(parameter, std::move(gradient)));
           })
      .def("close_step",
           [](Worker& w, double loss_sum, int64_t correct, int64_t labels,
              std::optional<nb::bytes> front_end_state,
              const std::map<std::string, std::pair<double, double>>&
                  measures) {
             PushClosing closing = MakeClosing(loss_sum, correct, labels,
                                               front_end_state, measures);
             closing.batch_norm_calls = w.batch_norms().calls();
             absl::StatusOr<PushVerdict> verdict;
             {
               const nb::gil_scoped_release released;
               verdict = w.session().CloseStep(std::move(closing));
             }
             cohort::Released().Drop();
             return Take(std::move(verdict));
           },
           "loss_sum"_a, "correct"_a, "labels"_a, "front_end_state"_a.none(),
           "measures"_a)
      .def("abandon_step",
           [](Worker& w, const std::string& reason) {
             w.session().AbandonStep(reason);
           })
      .def(
          "report_evaluation",
          [](Worker& w, const EvaluationSums& sums) {
            Check(w.session().ReportEvaluation(sums));
          },
          Released())
      .def(
          "report_moments",
          [](Worker& w) {
            Check(w.session().ReportMoments(w.session().TakeMoments()));
          },
          Released())
      .def("enter_phase",
           [](Worker& w, int phase) {
             w.session().EnterPhase(static_cast<StepPhase>(phase));
           })
      .def("leave_phase", [](Worker& w) { w.session().LeavePhase(); })
      .def(
          "leave",
          [](Worker& w, const std::string& reason) {
            w.session().Leave(reason);
          },
          Released())
      .def("request_stop", [](Worker& w) { w.session().RequestStop(); },
           Released());
}

nb::bytes PermutationBytes(uint64_t seed, int64_t epoch, int64_t n) {
  const std::vector<int64_t> order = EpochPermutation(seed, epoch, n);
  return nb::bytes(order.data(), order.size() * sizeof(int64_t));
}

void StartLog(const std::string& level) {
  InitLogging({.level = Take(ParseLogLevel(level)), .process = "worker"});
  RouteTransportLog(
      [](absl::string_view text) { Log(LogLevel::kDebug, text); });
}

}  // namespace
}  // namespace cohort

NB_MODULE(_core, m) {
  // A job that lives until the interpreter ends is no leak.
  nb::set_leak_warnings(false);
  m.doc() = "The C++ side of the package cohort; not a public interface.";
  static PyObject* status_error =
      PyErr_NewException("cohort._core.StatusError", PyExc_RuntimeError,
                         nullptr);
  m.attr("StatusError") = nb::borrow(status_error);
  nb::register_exception_translator(
      [](const std::exception_ptr& thrown, void*) {
        try {
          std::rethrow_exception(thrown);
        } catch (const cohort::StatusException& e) {
          const absl::Status& status = e.status();
          const nb::tuple arguments = nb::make_tuple(
              absl::StatusCodeToString(status.code()).c_str(),
              std::string(status.message()));
          PyErr_SetObject(status_error, arguments.ptr());
        }
      },
      nullptr);
  cohort::DefineValues(m);
  cohort::DefineWorker(m);
  m.def("permutation", &cohort::PermutationBytes, "seed"_a, "epoch"_a, "n"_a);
  m.def("mix_seed", &cohort::MixSeed, "a"_a, "b"_a, "c"_a = 0);
  m.def("start_log", &cohort::StartLog, "level"_a);
  m.def("log", [](const std::string& level, const std::string& text) {
    cohort::Log(cohort::Take(cohort::ParseLogLevel(level)), text);
  });
  m.def("build_text", &cohort::BuildText);
}
