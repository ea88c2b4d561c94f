#include "server/rpc/data_messages.h"

#include <cmath>
#include <cstring>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/byte_rope.h"
#include "common/status_macros.h"
#include "common/wire/convert.h"
#include "server/core/optimizer/slots.h"

namespace cohort {
namespace {

constexpr char kWeights[] = "weights";

void PushIdToProto(const PushId& push, v1::ShardPushId* proto) {
  proto->set_rank(push.rank.value());
  ToProto(push.key, proto->mutable_key());
}

absl::StatusOr<PushId> PushIdFromProto(const v1::ShardPushId& proto) {
  COHORT_ASSIGN_OR_RETURN(const PushKey key, FromProto(proto.key()));
  return PushId{.rank = Rank(proto.rank()), .key = key};
}

std::vector<Version> VersionsFrom(
    const google::protobuf::RepeatedField<int64_t>& protos) {
  std::vector<Version> versions;
  for (int64_t version : protos) versions.push_back(Version(version));
  return versions;
}

absl::Status CheckNumber(absl::string_view where, double number) {
  if (std::isfinite(number) && number >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      where, ": got ", number, ", want finite numbers of at least 0"));
}

void PlanToProto(const CommitPlan& plan, v1::PrepareCommit* proto) {
  proto->set_transaction(plan.transaction);
  proto->set_base_version(plan.base.value());
  for (const PushId& push : plan.contributors) {
    PushIdToProto(push, proto->add_contributors());
  }
  proto->set_learning_rate(plan.learning_rate);
  proto->mutable_group_rates()->Add(plan.group_rates.begin(),
                                    plan.group_rates.end());
  for (const GroupNumber& number : plan.numbers) {
    ToProto(number, proto->add_numbers());
  }
  proto->set_loss_weight(plan.loss_weight);
  if (plan.read.has_value()) proto->set_read_version(plan.read->value());
  proto->set_compensation(plan.compensation);
  proto->set_adaptive(plan.adaptive);
  proto->set_weight(plan.weight);
  proto->set_update(plan.update);
  proto->set_continues(plan.continues);
}

absl::StatusOr<CommitPlan> PlanFromProto(const v1::PrepareCommit& proto) {
  CommitPlan plan{
      .transaction = proto.transaction(),
      .base = Version(proto.base_version()),
      .learning_rate = proto.learning_rate(),
      .group_rates = {proto.group_rates().begin(), proto.group_rates().end()},
      .loss_weight = proto.loss_weight(),
      .compensation = proto.compensation(),
      .adaptive = proto.adaptive(),
      .weight = proto.weight(),
      .update = proto.update(),
      .continues = proto.continues()};
  for (const v1::ShardPushId& push : proto.contributors()) {
    COHORT_ASSIGN_OR_RETURN(plan.contributors.emplace_back(),
                            PushIdFromProto(push));
  }
  for (const v1::GroupNumber& number : proto.numbers()) {
    plan.numbers.push_back(FromProto(number));
  }
  if (proto.has_read_version()) plan.read = Version(proto.read_version());
  for (double number :
       {plan.learning_rate, plan.loss_weight, plan.compensation, plan.weight}) {
    COHORT_RETURN_IF_ERROR(CheckNumber("prepare", number));
  }
  return plan;
}

absl::StatusOr<command::Take> TakeFromProto(const v1::TakeGradient& proto) {
  COHORT_ASSIGN_OR_RETURN(const PushId push, PushIdFromProto(proto.push()));
  return command::Take{.rank = push.rank,
                       .incarnation = Incarnation(proto.incarnation()),
                       .push = push,
                       .partition = proto.partition(),
                       .ticket = proto.ticket(),
                       .held = proto.held()};
}

command::Abort AbortFromProto(const v1::EndTransaction& proto) {
  command::Abort abort{.transaction = proto.transaction(),
                       .held = VersionsFrom(proto.held())};
  if (proto.has_version()) abort.skipped = Version(proto.version());
  return abort;
}

absl::StatusOr<command::SendWeights> SendFromProto(
    const v1::SendShardWeights& proto) {
  COHORT_ASSIGN_OR_RETURN(const PushKey key, FromProto(proto.key()));
  return command::SendWeights{.rank = Rank(proto.rank()),
                              .incarnation = Incarnation(proto.incarnation()),
                              .key = key,
                              .partition = proto.partition(),
                              .version = Version(proto.version()),
                              .takes_change = proto.takes_change()};
}

absl::StatusOr<command::Scale> ScaleFromProto(const v1::ScaleGradients& proto) {
  command::Scale scale{
      .transaction = proto.transaction(),
      .scales = {.clip = proto.clip(),
                 .trust_ratios = {proto.trust_ratios().begin(),
                                  proto.trust_ratios().end()}}};
  COHORT_RETURN_IF_ERROR(CheckNumber("scale", scale.scales.clip));
  for (double ratio : scale.scales.trust_ratios) {
    COHORT_RETURN_IF_ERROR(CheckNumber("scale", ratio));
  }
  return scale;
}

absl::Status NormsFromProto(const v1::ShardFold& proto, FoldReport& report) {
  if (proto.gradient_squares_size() != proto.weight_squares_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("fold: got squares of ", proto.gradient_squares_size(),
                     " gradients and ", proto.weight_squares_size(),
                     " weights, want as many of each"));
  }
  for (int i = 0; i < proto.gradient_squares_size(); ++i) {
    const SliceNorm norm{.gradient = proto.gradient_squares(i),
                         .weights = proto.weight_squares(i)};
    COHORT_RETURN_IF_ERROR(CheckNumber("fold", norm.gradient));
    COHORT_RETURN_IF_ERROR(CheckNumber("fold", norm.weights));
    report.norms.push_back(norm);
  }
  return absl::OkStatus();
}

// The message of one command.
struct Encoder {
  v1::ShardCommand& to;

  void operator()(const command::Adopt& adopt) {
    to.mutable_adopt()->mutable_changed()->insert(adopt.changed.begin(),
                                                  adopt.changed.end());
  }
  void operator()(const command::Take& take) {
    v1::TakeGradient* proto = to.mutable_take();
    proto->set_ticket(take.ticket);
    proto->set_incarnation(take.incarnation.value());
    PushIdToProto(take.push, proto->mutable_push());
    proto->set_partition(take.partition);
    proto->set_held(take.held);
  }
  void operator()(const command::Refuse& refuse) {
    v1::RefuseGradient* proto = to.mutable_refuse();
    proto->set_ticket(refuse.ticket);
    proto->set_code(static_cast<int32_t>(refuse.status.code()));
    proto->set_text(std::string(refuse.status.message()));
  }
  void operator()(const command::Drop& drop) {
    PushIdToProto(drop.push, to.mutable_drop());
  }
  void operator()(const command::Prepare& prepare) {
    PlanToProto(prepare.plan, to.mutable_prepare());
  }
  void operator()(const command::Commit& commit) {
    v1::EndTransaction* proto = to.mutable_commit();
    proto->set_transaction(commit.transaction);
    proto->set_version(commit.version.value());
    for (Version version : commit.held) proto->add_held(version.value());
  }
  void operator()(const command::Abort& abort) {
    v1::EndTransaction* proto = to.mutable_abort();
    proto->set_transaction(abort.transaction);
    if (abort.skipped.has_value()) proto->set_version(abort.skipped->value());
    for (Version version : abort.held) proto->add_held(version.value());
  }
  void operator()(const command::SendWeights& send) {
    v1::SendShardWeights* proto = to.mutable_send_weights();
    proto->set_rank(send.rank.value());
    proto->set_incarnation(send.incarnation.value());
    ToProto(send.key, proto->mutable_key());
    proto->set_partition(send.partition);
    proto->set_version(send.version.value());
    proto->set_takes_change(send.takes_change);
  }
  void operator()(const command::Scale& scale) {
    v1::ScaleGradients* proto = to.mutable_scale();
    proto->set_transaction(scale.transaction);
    proto->set_clip(scale.scales.clip);
    proto->mutable_trust_ratios()->Add(scale.scales.trust_ratios.begin(),
                                       scale.scales.trust_ratios.end());
  }
  void operator()(const command::EndRun&) { to.set_end_run(true); }
};

}  // namespace

void EncodeInstallation(const Installation& install,
                        absl::FunctionRef<void(v1::ShardCommand&)> send) {
  v1::ShardCommand begin;
  v1::InstallModel* proto = begin.mutable_install();
  ToProto(*install.model, proto->mutable_model());
  proto->set_version(install.snapshot->version.value());
  const SettingValues settings = SettingsOf(install.settings);
  proto->mutable_settings()->insert(settings.begin(), settings.end());
  send(begin);
  for (size_t p = 0; p < install.snapshot->weights.size(); ++p) {
    EncodePartition(*install.snapshot, p, [&send](v1::ShardPartition& buffer) {
      v1::ShardCommand message;
      message.mutable_partition()->Swap(&buffer);
      send(message);
    });
  }
  v1::ShardCommand end;
  end.set_install_end(true);
  send(end);
}

v1::ShardCommand EncodeCommand(const ShardCommand& command) {
  v1::ShardCommand message;
  std::visit(Encoder{message}, command);
  return message;
}

absl::Status InstallationReader::Begin(const v1::InstallModel& message) {
  COHORT_ASSIGN_OR_RETURN(RegisteredModel model, FromProto(message.model()));
  snapshot_ = std::make_shared<ModelSnapshot>();
  snapshot_->version = Version(message.version());
  snapshot_->weights.resize(model.partitions.size());
  snapshot_->slots.resize(model.partitions.size());
  CoordinatorOptions settings;
  COHORT_RETURN_IF_ERROR(SetSettings(
      {message.settings().begin(), message.settings().end()}, settings));
  install_ = Installation{
      .place = place_,
      .model = std::make_shared<const RegisteredModel>(std::move(model)),
      .settings = std::move(settings)};
  return absl::OkStatus();
}

absl::Status InstallationReader::Add(const v1::ShardPartition& message) {
  if (!install_.has_value()) {
    return absl::InvalidArgumentError("got a partition without a model");
  }
  return AddPartition(message, install_->model->partitions, *snapshot_);
}

absl::StatusOr<std::optional<Installation>> InstallationReader::Take(
    const v1::ShardCommand& message) {
  if (message.has_install()) {
    COHORT_RETURN_IF_ERROR(Begin(message.install()));
    return std::nullopt;
  }
  if (message.has_partition()) {
    COHORT_RETURN_IF_ERROR(Add(message.partition()));
    return std::nullopt;
  }
  if (!install_.has_value()) {
    return absl::InvalidArgumentError("got the end of a model without a model");
  }
  install_->snapshot = std::move(snapshot_);
  return std::exchange(install_, std::nullopt);
}

absl::StatusOr<ShardCommand> FromProto(const v1::ShardCommand& message) {
  switch (message.command_case()) {
    case v1::ShardCommand::kAdopt:
      return command::Adopt{.changed = {message.adopt().changed().begin(),
                                        message.adopt().changed().end()}};
    case v1::ShardCommand::kTake: {
      COHORT_ASSIGN_OR_RETURN(command::Take take,
                              TakeFromProto(message.take()));
      return take;
    }
    case v1::ShardCommand::kRefuse:
      return command::Refuse{
          .ticket = message.refuse().ticket(),
          .status = absl::Status(
              static_cast<absl::StatusCode>(message.refuse().code()),
              message.refuse().text())};
    case v1::ShardCommand::kDrop: {
      COHORT_ASSIGN_OR_RETURN(const PushId push,
                              PushIdFromProto(message.drop()));
      return command::Drop{.push = push};
    }
    case v1::ShardCommand::kPrepare: {
      COHORT_ASSIGN_OR_RETURN(CommitPlan plan,
                              PlanFromProto(message.prepare()));
      return command::Prepare{.plan = std::move(plan)};
    }
    case v1::ShardCommand::kCommit:
      return command::Commit{.transaction = message.commit().transaction(),
                             .version = Version(message.commit().version()),
                             .held = VersionsFrom(message.commit().held())};
    case v1::ShardCommand::kAbort:
      return AbortFromProto(message.abort());
    case v1::ShardCommand::kSendWeights: {
      COHORT_ASSIGN_OR_RETURN(command::SendWeights send,
                              SendFromProto(message.send_weights()));
      return send;
    }
    case v1::ShardCommand::kScale: {
      COHORT_ASSIGN_OR_RETURN(command::Scale scale,
                              ScaleFromProto(message.scale()));
      return scale;
    }
    case v1::ShardCommand::kEndRun:
      return command::EndRun{};
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("got command ", static_cast<int>(message.command_case()),
                       ", which does not follow from those before it"));
  }
}

void ToProto(const RemoteGradient& gradient, v1::RemoteGradient* proto) {
  const GradientArrival& of = gradient.gradient;
  proto->set_ticket(of.ticket);
  ToProto(gradient.sender, proto->mutable_sender());
  ToProto(gradient.key, proto->mutable_key());
  proto->set_partition(of.partition);
  proto->set_encoding(EncodingOf(of.type));
  proto->set_bytes(of.bytes);
  proto->set_sampled_xxh3(of.sampled_checksum);
  proto->mutable_absent_slices()->Add(of.absent_slices.begin(),
                                      of.absent_slices.end());
}

absl::StatusOr<RemoteGradient> FromProto(const v1::RemoteGradient& proto) {
  RemoteGradient gradient;
  COHORT_ASSIGN_OR_RETURN(gradient.sender, FromProto(proto.sender()));
  COHORT_ASSIGN_OR_RETURN(gradient.key, FromProto(proto.key()));
  COHORT_ASSIGN_OR_RETURN(const ElementType type,
                          ElementTypeOf(proto.encoding()));
  if (proto.ticket() <= 0 || proto.bytes() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("gradient: got ticket ", proto.ticket(), " of ",
                     proto.bytes(), " bytes, want above 0 and at least 0"));
  }
  gradient.gradient = {.partition = proto.partition(),
                       .type = type,
                       .bytes = proto.bytes(),
                       .sampled_checksum = proto.sampled_xxh3(),
                       .absent_slices = {proto.absent_slices().begin(),
                                         proto.absent_slices().end()},
                       .ticket = proto.ticket()};
  return gradient;
}

void ToProto(const FoldReport& report, v1::ShardFold* proto) {
  proto->set_transaction(report.transaction);
  proto->set_partition(report.partition);
  proto->set_gradient_bytes(report.gradient_bytes);
  proto->set_prepared(report.prepared);
  for (const SliceNorm& norm : report.norms) {
    proto->add_gradient_squares(norm.gradient);
    proto->add_weight_squares(norm.weights);
  }
  if (!report.nonfinite.has_value()) return;
  v1::NonfiniteShardGradient* nonfinite = proto->mutable_nonfinite();
  if (report.nonfinite->rank.has_value()) {
    nonfinite->set_rank(report.nonfinite->rank->value());
  }
  nonfinite->set_partition(report.nonfinite->partition);
  nonfinite->set_slice(report.nonfinite->slice);
}

absl::StatusOr<FoldReport> FromProto(const v1::ShardFold& proto) {
  FoldReport report{.transaction = proto.transaction(),
                    .partition = proto.partition(),
                    .gradient_bytes = proto.gradient_bytes(),
                    .prepared = proto.prepared()};
  COHORT_RETURN_IF_ERROR(NormsFromProto(proto, report));
  if (proto.has_nonfinite()) {
    report.nonfinite =
        NonfiniteGradient{.partition = proto.nonfinite().partition(),
                          .slice = proto.nonfinite().slice()};
    if (proto.nonfinite().has_rank()) {
      report.nonfinite->rank = Rank(proto.nonfinite().rank());
    }
  }
  return report;
}

void EncodePartition(const ModelSnapshot& snapshot, size_t partition,
                     absl::FunctionRef<void(v1::ShardPartition&)> send) {
  const auto encode = [&](const char* name, const SharedFloats& floats,
                          const std::vector<int64_t>& updates) {
    if (floats == nullptr) return;
    v1::ShardPartition message;
    message.set_partition(static_cast<int32_t>(partition));
    message.set_buffer(name);
    message.mutable_updates()->Add(updates.begin(), updates.end());
    message.set_values(reinterpret_cast<const char*>(floats->data()),
                       static_cast<size_t>(floats->size()) * sizeof(float));
    message.set_xxh3(RopeOf(floats).Checksum());
    send(message);
  };
  const Slots& slots = snapshot.slots[partition];
  encode(kWeights, snapshot.weights[partition], slots.updates);
  for (const SlotKind& kind : AllSlots()) {
    encode(kind.name, slots.*kind.buffer, {});
  }
}

absl::Status AddPartition(const v1::ShardPartition& message,
                          const std::vector<Partition>& partitions,
                          ModelSnapshot& snapshot) {
  const auto p = static_cast<size_t>(message.partition());
  if (message.partition() < 0 || p >= partitions.size() ||
      message.values().size() !=
          static_cast<size_t>(partitions[p].elements) * sizeof(float)) {
    return absl::InvalidArgumentError(
        absl::StrCat("partition: got ", message.partition(), " with ",
                     message.values().size(), " bytes, want one of ",
                     partitions.size(), " with its size"));
  }
  auto floats = std::make_shared<FloatBuffer>(partitions[p].elements);
  std::memcpy(floats->data(), message.values().data(), message.values().size());
  if (floats->Checksum() != message.xxh3()) {
    return absl::DataLossError(
        absl::StrCat("partition ", p, ": its checksum does not match"));
  }
  if (message.buffer() == kWeights) {
    snapshot.weights[p] = std::move(floats);
    snapshot.slots[p].updates.assign(message.updates().begin(),
                                     message.updates().end());
    return absl::OkStatus();
  }
  for (const SlotKind& kind : AllSlots()) {
    if (message.buffer() != kind.name) continue;
    snapshot.slots[p].*kind.buffer = std::move(floats);
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "partition ", p, ": got the buffer '", message.buffer().substr(0, 64),
      "', want weights or an optimizer slot"));
}

}  // namespace cohort
