#include "worker/python/values.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/assignment.h"
#include "common/evaluation_sums.h"
#include "common/exchange_names.h"
#include "common/model_layout.h"
#include "common/push.h"
#include "kernels/optimizer_rules.h"
#include "worker/client/client.h"

namespace nb = nanobind;

namespace cohort {

namespace {

// "float32" and so on; float32 for any other name.
kernels::DataType TypeNamed(const std::string& name) {
  if (name == "float64") return kernels::DataType::kFloat64;
  if (name == "float16") return kernels::DataType::kFloat16;
  if (name == "bfloat16") return kernels::DataType::kBFloat16;
  return kernels::DataType::kFloat32;
}

// From [outer, channels, inner].
kernels::BatchShape ShapeOf(const std::vector<int64_t>& shape) {
  return {.outer = shape[0], .channels = shape[1], .inner = shape[2]};
}

// A call of batch norm, its two passes and what it moves, as Python passes
// them.
void DefineBatchNormCalls(nb::module_& m) {
  nb::class_<KeptCall>(m, "KeptCall")
      // Identifies the call within the step.
      .def_prop_ro("key",
                   [](const KeptCall& s) {
                     const CallPlace& place = s.call->place;
                     return std::make_tuple(place.part, place.layer, place.site,
                                            place.call);
                   })
      .def_prop_ro("count", [](const KeptCall& s) { return s.call->by.count; })
      // Mean and variance of all members, as two rows of float64 numbers.
      .def("write_to", [](const KeptCall& s, uintptr_t address) {
        const BatchStatistics& by = s.call->by;
        auto* out = Pointer<double>(address);
        out = std::copy(by.mean.begin(), by.mean.end(), out);
        std::copy(by.variance.begin(), by.variance.end(), out);
      });
  using Backward = BatchNormCalls::BackwardArgs;
  nb::class_<Backward>(m, "NormGradient")
      .def("__init__",
           [](Backward* self, const KeptCall& saved, std::vector<int32_t> path,
              const std::vector<int64_t>& shape, const std::string& type,
              uintptr_t x, uintptr_t dy, const std::string& affine_type,
              uintptr_t gamma, uintptr_t beta, bool relu, uintptr_t affine,
              bool needs_dx, uintptr_t dx) {
             new (self)
                 Backward{.saved = saved.call,
                          .path = std::move(path),
                          .tensors = {.shape = ShapeOf(shape),
                                      .type = TypeNamed(type),
                                      .x = Pointer<void>(x),
                                      .dy = Pointer<void>(dy),
                                      .parameter_type = TypeNamed(affine_type),
                                      .gamma = Pointer<void>(gamma),
                                      .relu = relu,
                                      .beta = Pointer<void>(beta),
                                      .dx = Pointer<void>(dx)},
                          .affine = Pointer<double>(affine),
                          .needs_dx = needs_dx};
           });
  // `momentum` is NaN for the cumulative average.
  using Update = MovingBuffers::Update;
  nb::class_<Update>(m, "BufferUpdate")
      .def("__init__", [](Update* self, uintptr_t mean, uintptr_t variance,
                          uintptr_t tracked, double momentum, bool own) {
        new (self) Update{.place = {.mean = Pointer<float>(mean),
                                    .variance = Pointer<float>(variance),
                                    .tracked = Pointer<int64_t>(tracked)},
                          .own = own};
        if (!std::isnan(momentum)) self->momentum = momentum;
      });
  using Forward = BatchNormCalls::ForwardArgs;
  nb::class_<Forward>(m, "NormCall")
      .def("__init__", [](Forward* self, int32_t layer, std::string site,
                          double epsilon, const std::vector<int64_t>& shape,
                          std::vector<int64_t> extents, const std::string& type,
                          uintptr_t x, const std::string& affine_type,
                          uintptr_t gamma, uintptr_t beta, bool relu,
                          uintptr_t y, const Update& update) {
        new (self) Forward{.call = {.layer = layer,
                                    .site = std::move(site),
                                    .epsilon = epsilon,
                                    .extents = std::move(extents),
                                    .update = update},
                           .tensors = {.shape = ShapeOf(shape),
                                       .type = TypeNamed(type),
                                       .x = Pointer<void>(x),
                                       .parameter_type = TypeNamed(affine_type),
                                       .gamma = Pointer<void>(gamma),
                                       .beta = Pointer<void>(beta),
                                       .relu = relu,
                                       .y = Pointer<void>(y)}};
      });
}

// The server's rules, as _optimizer.py reads them.
void DefineOptimizers(nb::module_& m) {
  nb::class_<kernels::TorchArgument>(m, "TorchArgument")
      .def_ro("name", &kernels::TorchArgument::name)
      .def_ro("number", &kernels::TorchArgument::number)
      .def_ro("position", &kernels::TorchArgument::position)
      .def_ro("constant", &kernels::TorchArgument::constant);
  nb::class_<kernels::TorchValue>(m, "TorchValue")
      .def_ro("name", &kernels::TorchValue::name)
      .def_ro("value", &kernels::TorchValue::value);
  nb::class_<kernels::TorchClass>(m, "TorchClass")
      .def_ro("name", &kernels::TorchClass::name)
      .def_ro("arguments", &kernels::TorchClass::arguments)
      .def_ro("values", &kernels::TorchClass::values);
  nb::class_<kernels::OptimizerRule>(m, "OptimizerRule")
      .def_prop_ro("name",
                   [](const kernels::OptimizerRule& rule) {
                     return std::string(OptimizerName(rule.kind));
                   })
      // How many are always kept, and how many at most.
      .def_prop_ro("slots",
                   [](const kernels::OptimizerRule& rule) {
                     const auto needed =
                         std::count_if(rule.slots.begin(), rule.slots.end(),
                                       [](const kernels::RuleSlot& slot) {
                                         return slot.kept == nullptr;
                                       });
                     return std::make_tuple(needed, rule.slots.size());
                   })
      .def_ro("torch_classes", &kernels::OptimizerRule::torch_classes);
  m.def("optimizer_rules", [] {
    const absl::Span<const kernels::OptimizerRule> rules =
        kernels::OptimizerRules();
    return std::vector<kernels::OptimizerRule>(rules.begin(), rules.end());
  });
}

}  // namespace

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
      .def_rw("optimizer", &RunPlan::optimizer)
      .def_rw("local_optimizer", &RunPlan::local_optimizer)
      .def_rw("awaits_scores", &RunPlan::awaits_scores);
  nb::class_<Score>(m, "Score")
      .def_prop_ro("step", [](const Score& s) { return s.version.value(); })
      .def_ro("epochs", &Score::epochs)
      .def_ro("loss", &Score::loss)
      .def_ro("accuracy", &Score::accuracy)
      .def_ro("mean_iou", &Score::mean_iou);
  nb::class_<Assignment>(m, "Assignment")
      .def_prop_ro("kind",
                   [](const Assignment& a) { return AssignmentName(a.kind); })
      .def_prop_ro("attempt",
                   [](const Assignment& a) { return a.attempt.value(); })
      .def_prop_ro("version",
                   [](const Assignment& a) { return a.version.value(); })
      .def_ro("data_epoch", &Assignment::data_epoch)
      .def_prop_ro("begin", [](const Assignment& a) { return a.range.begin; })
      .def_prop_ro("end", [](const Assignment& a) { return a.range.end; })
      .def_prop_ro("members",
                   [](const Assignment& a) { return a.members.size(); })
      .def_prop_ro("ranks",
                   [](const Assignment& a) {
                     std::vector<int32_t> ranks;
                     for (const Rank rank : a.members) {
                       ranks.push_back(rank.value());
                     }
                     return ranks;
                   })
      .def_ro("batches", &Assignment::batches)
      // Begin and end of each local step; empty unless the step has local ones.
      .def_prop_ro("local_steps",
                   [](const Assignment& a) {
                     std::vector<std::pair<int64_t, int64_t>> steps;
                     for (const IndexRange& step : a.local_steps) {
                       steps.emplace_back(step.begin, step.end);
                     }
                     return steps;
                   })
      .def_ro("local_rate_factor", &Assignment::local_rate_factor)
      .def_ro("statistics", &Assignment::statistics)
      .def_ro("global_normalization", &Assignment::global_normalization)
      .def_ro("moves_statistics", &Assignment::moves_statistics)
      .def_ro("reason", &Assignment::reason)
      .def_ro("unfinished", &Assignment::unfinished)
      .def_ro("failed", &Assignment::failed)
      .def_ro("score", &Assignment::score);
  nb::class_<PushVerdict>(m, "PushVerdict")
      .def_prop_ro("verdict",
                   [](const PushVerdict& v) { return VerdictName(v.verdict); })
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
      .def_rw("classes", &EvaluationSums::classes);
  nb::class_<Membership>(m, "Membership")
      .def_prop_ro("rank", [](const Membership& j) { return j.rank.value(); })
      .def_ro("run_id", &Membership::run_id)
      .def_ro("global_batch", &Membership::global_batch)
      .def_ro("run_name", &Membership::run_name)
      .def_ro("seed", &Membership::seed)
      .def_prop_ro("version",
                   [](const Membership& j) { return j.version.value(); })
      .def_ro("workers", &Membership::workers);
  nb::class_<PulledVersion>(m, "Pulled")
      .def_prop_ro("version",
                   [](const PulledVersion& p) { return p.version.value(); })
      .def_prop_ro("front_end_state", [](const PulledVersion& p) {
        return nb::bytes(p.front_end_state.data(), p.front_end_state.size());
      });
  DefineBatchNormCalls(m);
  DefineOptimizers(m);
}

}  // namespace cohort
