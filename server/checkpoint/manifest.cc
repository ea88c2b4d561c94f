#include "server/checkpoint/manifest.h"

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "cohort/v1/checkpoint.pb.h"
#include "common/limits.h"
#include "common/status_macros.h"
#include "common/wire/convert.h"
#include "common/wire/field_checks.h"
#include "common/wire/message_checksum.h"
#include "server/checkpoint/state_checks.h"

namespace cohort {
namespace {

using wire_internal::CheckNotNegative;
using wire_internal::Refuse;

template <typename Id, typename Field>
void AddIds(const std::vector<Id>& ids, Field* field) {
  for (const Id id : ids) field->Add(id.value());
}

template <typename Id, typename Field>
std::vector<Id> IdsFrom(const Field& field) {
  std::vector<Id> ids;
  for (const auto id : field) ids.emplace_back(id);
  return ids;
}

using EdgeProtos = google::protobuf::RepeatedPtrField<v1::CallOrder::Edge>;

void ToProto(const std::vector<CallOrder::Edge>& edges, EdgeProtos* protos) {
  for (const CallOrder::Edge& edge : edges) {
    v1::CallOrder::Edge* to = protos->Add();
    ToProto(ReduceKey{.place = edge.before}, to->mutable_before());
    ToProto(ReduceKey{.place = edge.after}, to->mutable_after());
  }
}

absl::StatusOr<std::vector<CallOrder::Edge>> EdgesFrom(
    const EdgeProtos& protos) {
  std::vector<CallOrder::Edge> edges;
  for (const v1::CallOrder::Edge& from : protos) {
    COHORT_ASSIGN_OR_RETURN(ReduceKey before, FromProto(from.before()));
    COHORT_ASSIGN_OR_RETURN(ReduceKey after, FromProto(from.after()));
    edges.push_back(
        {.before = std::move(before.place), .after = std::move(after.place)});
  }
  return edges;
}

// Whatever the edges are, they only choose which rendezvous comes first.
absl::StatusOr<CallOrder::State> CallOrderFrom(const v1::CallOrder& proto) {
  CallOrder::State order{.step = Version(proto.step())};
  COHORT_ASSIGN_OR_RETURN(order.now, EdgesFrom(proto.now()));
  COHORT_ASSIGN_OR_RETURN(order.old, EdgesFrom(proto.old()));
  return order;
}

void ToProto(const PolicyRecord& record, v1::PolicyRecord* proto) {
  proto->set_policy_epoch(record.policy_epoch);
  proto->set_version(record.version.value());
  proto->set_samples(record.samples);
  proto->mutable_changed()->insert(record.changed.begin(),
                                   record.changed.end());
  proto->set_text(record.text);
  proto->set_by_flags(record.by_flags);
  proto->set_author(record.note.author);
  proto->set_reason(record.note.reason);
}

PolicyRecord RecordFrom(const v1::PolicyRecord& proto) {
  return {.policy_epoch = proto.policy_epoch(),
          .version = Version(proto.version()),
          .samples = proto.samples(),
          .changed = {proto.changed().begin(), proto.changed().end()},
          .text = proto.text(),
          .by_flags = proto.by_flags(),
          .note = {.author = proto.author(), .reason = proto.reason()}};
}

void ToProto(const ModelSnapshot& snapshot, v1::RunState* proto) {
  proto->set_version(snapshot.version.value());
  for (const StatisticsSet& set : *snapshot.statistics) {
    v1::KeptStatistics* to = proto->add_statistics();
    to->set_kind(std::string(StatisticsName(set.kind)));
    if (set.collected.has_value()) {
      to->set_collected_version(set.collected->value());
    }
    ToProto(set.layers, to->mutable_layers());
  }
  if (snapshot.front_end_state != nullptr) {
    proto->set_front_end_state(*snapshot.front_end_state);
  }
  for (const Slots& slots : snapshot.slots) {
    proto->add_updates()->mutable_updates()->Add(slots.updates.begin(),
                                                 slots.updates.end());
  }
}

absl::StatusOr<StatisticsSets> StatisticsFrom(const v1::RunState& proto,
                                              const ModelLayout& layout) {
  StatisticsSets sets;
  for (const v1::KeptStatistics& from : proto.statistics()) {
    const std::optional<StatisticsKind> kind = StatisticsKindOf(from.kind());
    if (!kind.has_value() || *kind == StatisticsKind::kBatch ||
        FindSet(sets, *kind) != nullptr) {
      return Refuse("statistics", absl::StrCat("kind '", from.kind(), "'"),
                    "kinds that checkpoints keep, each once");
    }
    StatisticsSet set{.kind = *kind};
    COHORT_ASSIGN_OR_RETURN(set.layers, FromProto(from.layers(), layout));
    if (set.layers.size() != layout.batch_norms.size()) {
      return Refuse("statistics", "none of any layer", "one entry a layer");
    }
    if (from.has_collected_version()) {
      COHORT_RETURN_IF_ERROR(CheckNotNegative("statistics.collected_version",
                                              from.collected_version()));
      set.collected = Version(from.collected_version());
    }
    sets.push_back(std::move(set));
  }
  if (sets.empty()) return Refuse("statistics", "none", "at least one kind");
  return sets;
}

absl::StatusOr<SharedSnapshot> SnapshotFrom(const v1::RunState& proto,
                                            const RegisteredModel& model) {
  auto snapshot = std::make_shared<ModelSnapshot>();
  snapshot->version = Version(proto.version());
  COHORT_ASSIGN_OR_RETURN(StatisticsSets sets,
                          StatisticsFrom(proto, model.layout));
  snapshot->statistics =
      std::make_shared<const StatisticsSets>(std::move(sets));
  if (proto.has_front_end_state()) {
    if (proto.front_end_state().size() > limits::kFrontEndStateMax) {
      return Refuse("front_end_state",
                    absl::StrCat(proto.front_end_state().size(), " bytes"),
                    absl::StrCat("at most ", limits::kFrontEndStateMax));
    }
    snapshot->front_end_state =
        std::make_shared<const std::string>(proto.front_end_state());
  }
  if (static_cast<size_t>(proto.updates_size()) != model.partitions.size()) {
    return Refuse("updates", absl::StrCat(proto.updates_size(), " partitions"),
                  absl::StrCat(model.partitions.size()));
  }
  for (const v1::SliceUpdates& from : proto.updates()) {
    snapshot->slots.emplace_back().updates.assign(from.updates().begin(),
                                                  from.updates().end());
  }
  return snapshot;
}

void ToProto(const RunState& state, v1::RunState* proto) {
  ToProto(*state.model, proto->mutable_model());
  ToProto(*state.snapshot, proto);
  proto->set_samples(state.samples);
  proto->set_local_steps(state.local_steps);
  proto->set_data_epoch(state.data_epoch);
  proto->set_cursor(state.cursor);
  for (const IssuedRange& range : state.reissue) {
    v1::IssuedRange* to = proto->add_reissue();
    to->set_epoch(range.epoch);
    to->set_begin(range.range.begin);
    to->set_end(range.range.end);
  }
  proto->set_policy_epoch(state.policy_epoch);
  proto->mutable_settings()->insert(state.settings.begin(),
                                    state.settings.end());
  proto->set_epochs(state.epochs);
  proto->set_max_steps(state.max_steps);
  for (const PolicyRecord& record : state.policy_history) {
    ToProto(record, proto->add_policy_history());
  }
  AddIds(state.next_sequences, proto->mutable_next_sequences());
  proto->mutable_batch_sizes()->Add(state.batch_sizes.begin(),
                                    state.batch_sizes.end());
  AddIds(state.lost, proto->mutable_lost());
  AddIds(state.never_registered, proto->mutable_never_registered());
  proto->set_next_incarnation(state.next_incarnation.value());
  if (state.call_order.step.has_value()) {
    v1::CallOrder* order = proto->mutable_call_order();
    order->set_step(state.call_order.step->value());
    ToProto(state.call_order.now, order->mutable_now());
    ToProto(state.call_order.old, order->mutable_old());
  }
  if (state.score.has_value()) ToProto(*state.score, proto->mutable_score());
  if (state.ended.has_value()) proto->set_ended(*state.ended);
  if (state.kept_state != nullptr) {
    proto->set_kept_moves_from(state.kept_moves_from.value());
  }
}

absl::StatusOr<RunState> StateFrom(const v1::RunState& proto) {
  COHORT_ASSIGN_OR_RETURN(RegisteredModel model, FromProto(proto.model()));
  RunState state{
      .model = std::make_shared<const RegisteredModel>(std::move(model)),
      .samples = proto.samples(),
      .local_steps = proto.local_steps(),
      .data_epoch = proto.data_epoch(),
      .cursor = proto.cursor(),
      .policy_epoch = proto.policy_epoch(),
      .settings = {proto.settings().begin(), proto.settings().end()},
      .epochs = proto.epochs(),
      .max_steps = proto.max_steps(),
      .next_sequences = IdsFrom<Sequence>(proto.next_sequences()),
      .batch_sizes = {proto.batch_sizes().begin(), proto.batch_sizes().end()},
      .lost = IdsFrom<Rank>(proto.lost()),
      .never_registered = IdsFrom<Rank>(proto.never_registered()),
      .next_incarnation = Incarnation(proto.next_incarnation())};
  COHORT_ASSIGN_OR_RETURN(state.snapshot, SnapshotFrom(proto, *state.model));
  for (const v1::IssuedRange& range : proto.reissue()) {
    state.reissue.push_back(
        {.epoch = range.epoch(),
         .range = {.begin = range.begin(), .end = range.end()}});
  }
  for (const v1::PolicyRecord& record : proto.policy_history()) {
    state.policy_history.push_back(RecordFrom(record));
  }
  if (proto.has_call_order()) {
    COHORT_ASSIGN_OR_RETURN(state.call_order,
                            CallOrderFrom(proto.call_order()));
  }
  if (proto.has_score()) {
    COHORT_ASSIGN_OR_RETURN(state.score, FromProto(proto.score()));
  }
  if (proto.has_ended()) state.ended = proto.ended();
  if (proto.has_kept_moves_from()) {
    const int64_t from = proto.kept_moves_from();
    if (from < 0 || from > proto.version()) {
      return Refuse("kept_moves_from", absl::StrCat(from),
                    absl::StrCat("0 to ", proto.version()));
    }
    state.kept_moves_from = Version(from);
    // Its bytes are in the tensor file.
    state.kept_state = std::make_shared<const std::string>();
  }
  return state;
}

absl::StatusOr<Checkpoint> CheckpointFrom(const v1::RunState& proto) {
  Checkpoint checkpoint{.identity = {.run_id = proto.run_id(),
                                     .seed = proto.seed(),
                                     .run_name = proto.run_name()}};
  COHORT_ASSIGN_OR_RETURN(checkpoint.state, StateFrom(proto));
  COHORT_RETURN_IF_ERROR(CheckState(checkpoint.identity, checkpoint.state));
  return checkpoint;
}

}  // namespace

std::string EncodeState(const RunIdentity& identity, const RunState& state) {
  v1::RunState proto;
  proto.set_run_id(identity.run_id);
  proto.set_run_name(identity.run_name);
  proto.set_seed(identity.seed);
  ToProto(state, &proto);
  return SortedEncoding(proto);
}

absl::StatusOr<Checkpoint> DecodeState(const std::string& path,
                                       const std::string& bytes) {
  const auto damaged = [&path](absl::string_view what) {
    return absl::DataLossError(
        absl::StrCat(path, ": not a valid manifest: ", what));
  };
  v1::RunState proto;
  if (!proto.ParseFromString(bytes)) return damaged("it is no RunState");
  const size_t known = proto.ByteSizeLong();
  proto.DiscardUnknownFields();
  if (proto.ByteSizeLong() != known) {
    return absl::FailedPreconditionError(absl::StrCat(
        path,
        ": got fields that this release does not know, want none: a "
        "newer release of Cohort wrote it; continue the run with that one"));
  }
  absl::StatusOr<Checkpoint> checkpoint = CheckpointFrom(proto);
  if (checkpoint.ok()) return checkpoint;
  return damaged(checkpoint.status().message());
}

}  // namespace cohort
