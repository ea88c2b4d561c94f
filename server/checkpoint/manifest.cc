#include "server/checkpoint/manifest.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/limits.h"
#include "common/model_layout.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

using Json = nlohmann::ordered_json;

absl::Status Damaged(const std::string& path, absl::string_view what) {
  return absl::DataLossError(
      absl::StrCat(path, ": not a valid manifest: ", what));
}

Json ModelJson(const RegisteredModel& model) {
  Json json;
  for (const ParameterSpec& p : model.layout.parameters) {
    json["parameters"].push_back({{"name", p.name},
                                  {"shape", p.shape},
                                  {"trainable", p.trainable},
                                  {"decay_exempt", p.decay_exempt},
                                  {"rate_multiplier", p.rate_multiplier},
                                  {"decay_multiplier", p.decay_multiplier},
                                  {"rate_group", p.rate_group}});
  }
  json["batch_norms"] = Json::array();
  for (const BatchNormSpec& bn : model.layout.batch_norms) {
    json["batch_norms"].push_back(
        {{"name", bn.name},
         {"channels", bn.channels},
         {"epsilon", bn.epsilon},
         {"momentum", bn.momentum.has_value() ? Json(*bn.momentum) : Json()},
         {"affine", bn.affine},
         {"track_statistics", bn.track_statistics},
         {"convention", bn.convention == StatisticsConvention::kPyTorch
                            ? "pytorch"
                            : "keras"}});
  }
  for (const Partition& partition : model.partitions) {
    Json slices = Json::array();
    for (const Slice& s : partition.slices) {
      slices.push_back(Json::array({s.parameter, s.offset, s.count}));
    }
    json["partitions"].push_back(
        {{"slices", slices}, {"trainable", partition.trainable}});
  }
  json["plan"] = {{"dataset", model.plan.dataset},
                  {"dataset_digest", model.plan.dataset_digest},
                  {"train_samples", model.plan.train_samples},
                  {"test_samples", model.plan.test_samples},
                  {"loss_reference", model.plan.loss_reference},
                  {"loss", model.plan.loss},
                  {"own_data", model.plan.own_data},
                  {"rates_by_workers", model.plan.rates_by_workers},
                  {"optimizer", model.plan.optimizer}};
  return json;
}

// nlohmann's accessors throw on a wrong type; the caller catches.
SharedModel ModelFrom(const Json& json) {
  auto model = std::make_shared<RegisteredModel>();
  for (const Json& p : json.at("parameters")) {
    model->layout.parameters.push_back(
        {.name = p.at("name"),
         .shape = p.at("shape").get<std::vector<int64_t>>(),
         .trainable = p.at("trainable"),
         .decay_exempt = p.at("decay_exempt"),
         .rate_multiplier = p.at("rate_multiplier"),
         .decay_multiplier = p.at("decay_multiplier"),
         .rate_group = p.at("rate_group")});
  }
  for (const Json& bn : json.at("batch_norms")) {
    BatchNormSpec spec{.name = bn.at("name"),
                       .channels = bn.at("channels"),
                       .epsilon = bn.at("epsilon"),
                       .affine = bn.at("affine"),
                       .track_statistics = bn.at("track_statistics")};
    spec.momentum.reset();
    if (!bn.at("momentum").is_null()) {
      spec.momentum = bn.at("momentum").get<double>();
    }
    spec.convention = bn.at("convention") == "keras"
                          ? StatisticsConvention::kKeras
                          : StatisticsConvention::kPyTorch;
    model->layout.batch_norms.push_back(std::move(spec));
  }
  for (const Json& partition : json.at("partitions")) {
    Partition out{.trainable = partition.at("trainable")};
    for (const Json& s : partition.at("slices")) {
      out.slices.push_back({.parameter = s.at(0).get<int32_t>(),
                            .offset = s.at(1).get<int64_t>(),
                            .count = s.at(2).get<int64_t>()});
      if (__builtin_add_overflow(out.elements, out.slices.back().count,
                                 &out.elements)) {
        throw std::out_of_range("a partition has more than 2^63 elements");
      }
    }
    model->partitions.push_back(std::move(out));
  }
  const Json& plan = json.at("plan");
  model->plan = {.dataset = plan.at("dataset"),
                 .dataset_digest = plan.at("dataset_digest"),
                 .train_samples = plan.at("train_samples"),
                 .test_samples = plan.at("test_samples"),
                 .loss_reference = plan.at("loss_reference"),
                 .loss = plan.at("loss"),
                 .own_data = plan.at("own_data"),
                 .rates_by_workers = plan.at("rates_by_workers"),
                 .optimizer = plan.at("optimizer").get<SettingValues>()};
  return model;
}

// Partitions hold every element of every parameter once, in layout order.
bool PartitionsFit(const RegisteredModel& model) {
  const std::vector<ParameterSpec>& parameters = model.layout.parameters;
  size_t parameter = 0;
  int64_t offset = 0;
  for (const Partition& partition : model.partitions) {
    if (partition.slices.empty()) return false;
    for (const Slice& s : partition.slices) {
      if (parameter >= parameters.size() || s.offset != offset ||
          s.parameter != static_cast<int32_t>(parameter) || s.count <= 0 ||
          s.count > ElementCount(parameters[parameter]) - offset ||
          partition.trainable != parameters[parameter].trainable) {
        return false;
      }
      offset += s.count;
      if (offset == ElementCount(parameters[parameter])) {
        ++parameter;
        offset = 0;
      }
    }
  }
  return parameter == parameters.size();
}

absl::Status CheckManifest(const std::string& path, const Manifest& manifest) {
  const RegisteredModel& model = *manifest.state.model;
  const absl::Status layout = Validate(model.layout);
  if (!layout.ok()) return Damaged(path, layout.message());
  if (!PartitionsFit(model)) {
    return Damaged(path, "its partitions do not match its parameters");
  }
  if (manifest.statistics.empty()) {
    return Damaged(path, "got no statistics, want at least one kind");
  }
  for (const KeptSet& set : manifest.statistics) {
    if (set.batches_tracked.size() == model.layout.batch_norms.size()) continue;
    return Damaged(
        path,
        absl::StrCat("got batches_tracked of ", set.batches_tracked.size(),
                     " layers, want ", model.layout.batch_norms.size()));
  }
  return absl::OkStatus();
}

Json StatisticsJson(const std::vector<KeptSet>& sets) {
  Json json = Json::array();
  for (const KeptSet& set : sets) {
    json.push_back(
        {{"kind", std::string(StatisticsName(set.kind))},
         {"batches_tracked", set.batches_tracked},
         {"collected",
          set.collected.has_value() ? Json(set.collected->value()) : Json()}});
  }
  return json;
}

absl::StatusOr<std::vector<KeptSet>> StatisticsFrom(const std::string& path,
                                                    const Json& json) {
  std::vector<KeptSet> sets;
  for (const Json& from : json) {
    const std::string name = from.at("kind").get<std::string>();
    const std::optional<StatisticsKind> kind = StatisticsKindOf(name);
    const bool known = kind.has_value();
    const bool repeated =
        std::any_of(sets.begin(), sets.end(),
                    [&kind](const KeptSet& set) { return set.kind == kind; });
    if (!known || repeated) {
      return Damaged(path, absl::StrCat("got statistics of kind '", name,
                                        "', want known kinds, each once"));
    }
    KeptSet set{.kind = *kind,
                .batches_tracked =
                    from.at("batches_tracked").get<std::vector<int64_t>>()};
    if (!from.at("collected").is_null()) {
      set.collected = Version(from.at("collected").get<int64_t>());
    }
    sets.push_back(std::move(set));
  }
  return sets;
}

Json RanksJson(const std::vector<Rank>& ranks) {
  Json json = Json::array();
  for (Rank rank : ranks) json.push_back(rank.value());
  return json;
}

std::vector<Rank> RanksFrom(const Json& json, const char* name) {
  std::vector<Rank> ranks;
  for (const Json& rank : json.at(name))
    ranks.emplace_back(rank.get<int32_t>());
  return ranks;
}

// Edges name calls by their position in `calls`, so that each call is written
// once.
Json EdgesJson(const std::vector<CallOrder::Edge>& edges,
               std::map<CallPlace, size_t>& calls) {
  Json json = Json::array();
  const auto number = [&calls](const CallPlace& place) {
    return calls.try_emplace(place, calls.size()).first->second;
  };
  for (const CallOrder::Edge& edge : edges) {
    const size_t before = number(edge.before);
    json.push_back(Json::array({before, number(edge.after)}));
  }
  return json;
}

Json CallOrderJson(const CallOrder::State& order) {
  std::map<CallPlace, size_t> calls;
  Json json = {{"step", order.step->value()}};
  json["now"] = EdgesJson(order.now, calls);
  json["old"] = EdgesJson(order.old, calls);
  std::vector<const CallPlace*> places(calls.size());
  for (const auto& [place, number] : calls) places[number] = &place;
  json["calls"] = Json::array();
  for (const CallPlace* place : places) {
    json["calls"].push_back(Json::array(
        {place->part, place->layer, place->site, place->call,
         place->phase == ReducePhase::kForward ? "f" : "b", place->path}));
  }
  return json;
}

std::vector<CallOrder::Edge> EdgesFrom(const Json& json,
                                       const std::vector<CallPlace>& calls) {
  std::vector<CallOrder::Edge> edges;
  for (const Json& edge : json) {
    edges.push_back({.before = calls.at(edge.at(0).get<size_t>()),
                     .after = calls.at(edge.at(1).get<size_t>())});
  }
  return edges;
}

// Whatever the edges are, they only choose which rendezvous comes first.
CallOrder::State CallOrderFrom(const Json& json) {
  std::vector<CallPlace> calls;
  for (const Json& call : json.at("calls")) {
    calls.push_back({.part = call.at(0).get<int32_t>(),
                     .layer = call.at(1).get<int32_t>(),
                     .site = call.at(2).get<std::string>(),
                     .call = call.at(3).get<int32_t>(),
                     .phase = call.at(4).get<std::string>() == "f"
                                  ? ReducePhase::kForward
                                  : ReducePhase::kBackward,
                     .path = call.at(5).get<std::vector<int32_t>>()});
  }
  return {.step = Version(json.at("step").get<int64_t>()),
          .now = EdgesFrom(json.at("now"), calls),
          .old = EdgesFrom(json.at("old"), calls)};
}

Json StateJson(const RunState& state) {
  Json json = {{"samples", state.samples},
               {"data_epoch", state.data_epoch},
               {"cursor", state.cursor},
               {"policy_epoch", state.policy_epoch},
               {"batch_sizes", state.batch_sizes},
               {"next_incarnation", state.next_incarnation.value()}};
  json["next_sequences"] = Json::array();
  for (Sequence s : state.next_sequences) {
    json["next_sequences"].push_back(s.value());
  }
  json["lost"] = RanksJson(state.lost);
  json["never_registered"] = RanksJson(state.never_registered);
  json["reissue"] = Json::array();
  for (const RunState::Range& r : state.reissue) {
    json["reissue"].push_back(
        Json::array({r.epoch, r.range.begin, r.range.end}));
  }
  json["settings"] = state.settings;
  json["epochs"] = state.epochs;
  json["max_steps"] = state.max_steps;
  if (state.ended.has_value()) json["ended"] = *state.ended;
  if (state.call_order.step.has_value()) {
    json["call_order"] = CallOrderJson(state.call_order);
  }
  json["policy_history"] = Json::array();
  for (const PolicyRecord& r : state.policy_history) {
    json["policy_history"].push_back({{"policy_epoch", r.policy_epoch},
                                      {"version", r.version.value()},
                                      {"samples", r.samples},
                                      {"changed", r.changed},
                                      {"text", r.text},
                                      {"by_flags", r.by_flags},
                                      {"author", r.note.author},
                                      {"reason", r.note.reason}});
  }
  return json;
}

void PolicyFrom(const Json& json, RunState& state) {
  state.settings = json.at("settings").get<SettingValues>();
  for (const Json& r : json.at("policy_history")) {
    state.policy_history.push_back(
        {.policy_epoch = r.at("policy_epoch"),
         .version = Version(r.at("version").get<int64_t>()),
         .samples = r.at("samples"),
         .changed = r.at("changed").get<SettingValues>(),
         .text = r.at("text"),
         .by_flags = r.at("by_flags"),
         .note = {.author = r.at("author"), .reason = r.at("reason")}});
  }
}

RunState StateFrom(const Json& json) {
  RunState state{
      .samples = json.at("samples"),
      .data_epoch = json.at("data_epoch"),
      .cursor = json.at("cursor"),
      .policy_epoch = json.at("policy_epoch"),
      .batch_sizes = json.at("batch_sizes").get<std::vector<int64_t>>(),
      .next_incarnation =
          Incarnation(json.at("next_incarnation").get<int64_t>())};
  for (const Json& s : json.at("next_sequences")) {
    state.next_sequences.emplace_back(s.get<int64_t>());
  }
  for (const Json& r : json.at("reissue")) {
    state.reissue.push_back({.epoch = r.at(0).get<int64_t>(),
                             .range = {.begin = r.at(1).get<int64_t>(),
                                       .end = r.at(2).get<int64_t>()}});
  }
  state.lost = RanksFrom(json, "lost");
  state.never_registered = RanksFrom(json, "never_registered");
  state.epochs = json.at("epochs");
  state.max_steps = json.at("max_steps");
  if (json.contains("ended")) state.ended = json.at("ended").get<std::string>();
  if (json.contains("call_order")) {
    state.call_order = CallOrderFrom(json.at("call_order"));
  }
  PolicyFrom(json, state);
  return state;
}

// Absent where no worker sent any.
absl::StatusOr<SharedText> FrontEndStateFrom(const std::string& path,
                                             const Json& body) {
  if (!body.contains("front_end_state")) return nullptr;
  std::string state;
  const bool read = absl::Base64Unescape(
      body.at("front_end_state").get<std::string>(), &state);
  if (read && state.size() <= limits::kFrontEndStateMax) {
    return std::make_shared<const std::string>(std::move(state));
  }
  return Damaged(path,
                 absl::StrCat("its front_end_state is not base64 of at most ",
                              limits::kFrontEndStateMax, " bytes"));
}

// The only numbers that need not be whole.
constexpr absl::string_view kFractions[] = {
    "epsilon", "momentum", "rate_multiplier", "decay_multiplier",
    "loss_reference"};

// Throws if a number of `json` is neither whole nor one of kFractions:
// nlohmann's accessors would convert 1e300 to a whole number, which is
// undefined. The caller has limited how deep it nests.
void CheckNumbers(const Json& json) {
  for (const auto& [name, value] : json.items()) {
    if (value.is_structured()) CheckNumbers(value);
    if (!value.is_number_float()) continue;
    if (json.is_object() &&
        std::find(std::begin(kFractions), std::end(kFractions), name) !=
            std::end(kFractions)) {
      continue;
    }
    throw std::out_of_range(absl::StrCat(name, " is not a whole number"));
  }
}

}  // namespace

std::string EncodeManifest(const Manifest& manifest) {
  Json state = {{"statistics", StatisticsJson(manifest.statistics)},
                {"state", StateJson(manifest.state)},
                {"model", ModelJson(*manifest.state.model)}};
  // Base64, because it may be any bytes.
  if (manifest.front_end_state != nullptr) {
    state["front_end_state"] = absl::Base64Escape(*manifest.front_end_state);
  }
  return EncodeCheckpointManifest({.identity = manifest.identity,
                                   .version = manifest.version.value(),
                                   .tensors_xxh3 = manifest.tensors.xxh3,
                                   .tensors_bytes = manifest.tensors.bytes,
                                   .state = state.dump()});
}

absl::StatusOr<Manifest> DecodeManifest(const std::string& path,
                                        const CheckpointManifest& read) {
  try {
    const Json body = Json::parse(read.state);
    CheckNumbers(body);
    Manifest manifest{
        .identity = read.identity,
        .state = StateFrom(body.at("state")),
        .version = Version(read.version),
        .tensors = {.bytes = read.tensors_bytes, .xxh3 = read.tensors_xxh3}};
    COHORT_ASSIGN_OR_RETURN(manifest.statistics,
                            StatisticsFrom(path, body.at("statistics")));
    manifest.state.model = ModelFrom(body.at("model"));
    COHORT_ASSIGN_OR_RETURN(manifest.front_end_state,
                            FrontEndStateFrom(path, body));
    COHORT_RETURN_IF_ERROR(CheckManifest(path, manifest));
    return manifest;
  } catch (const std::exception& e) {
    return Damaged(path, e.what());
  }
}

}  // namespace cohort
