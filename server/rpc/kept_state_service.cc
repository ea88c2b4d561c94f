#include <grpcpp/grpcpp.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "cohort/v1/kept_state.grpc.pb.h"
#include "common/status_macros.h"
#include "common/wire/convert.h"
#include "common/wire/message_checksum.h"
#include "common/wire/status.h"
#include "server/rpc/caller.h"
#include "server/rpc/sender_check.h"
#include "server/rpc/services.h"
#include "server/streams/fault.h"

namespace cohort {
namespace {

using RawKeptState = v1::KeptState::WithCallbackMethod_Hold<
    v1::KeptState::WithCallbackMethod_Give<
        v1::KeptState::WithCallbackMethod_Take<v1::KeptState::Service>>>;

class KeptStateService final : public RawKeptState {
 public:
  KeptStateService(RunHost& run, KeptStateActions actions)
      : run_(run), actions_(std::move(actions)) {}

  grpc::ServerUnaryReactor* Hold(grpc::CallbackServerContext* context,
                                 const v1::HoldRequest* request,
                                 v1::HoldReply* reply) override {
    return Serve(context, *request, reply, &KeptStateService::HandleHold);
  }
  grpc::ServerUnaryReactor* Give(grpc::CallbackServerContext* context,
                                 const v1::GiveRequest* request,
                                 v1::GiveReply* reply) override {
    return Serve(context, *request, reply, &KeptStateService::HandleGive);
  }
  grpc::ServerUnaryReactor* Take(grpc::CallbackServerContext* context,
                                 const v1::TakeRequest* request,
                                 v1::TakeReply* reply) override {
    return Serve(context, *request, reply, &KeptStateService::HandleTake);
  }

 private:
  // Checks the request and its sender before any other field is used.
  template <typename Request, typename Reply>
  grpc::ServerUnaryReactor* Serve(grpc::CallbackServerContext* context,
                                  Request request, Reply* reply,
                                  absl::Status (KeptStateService::*handle)(
                                      const Sender&, Request&, Reply&)) {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(ToGrpcStatus(ServePeer([&]() -> absl::Status {
      COHORT_RETURN_IF_ERROR(TakeMessageChecksum(&request));
      COHORT_ASSIGN_OR_RETURN(const Sender sender,
                              cohort::FromProto(request.sender()));
      const Caller caller = CallerOf(*context);
      const absl::Status own = CheckRank(caller, sender.rank);
      if (!own.ok()) {
        run_.DeniedRank(caller.name);
        return own;
      }
      if (request.version() < 0) {
        return absl::InvalidArgumentError(absl::StrCat(
            "version: got ", request.version(), ", want at least 0"));
      }
      // It checks the sender, and is progress only for one that is asked for
      // values.
      COHORT_RETURN_IF_ERROR(run_.RegisterProgress(sender));
      COHORT_RETURN_IF_ERROR((this->*handle)(sender, request, *reply));
      AddMessageChecksum(reply);
      return absl::OkStatus();
    })));
    return reactor;
  }

  absl::Status HandleHold(const Sender& sender, v1::HoldRequest& request,
                          v1::HoldReply& reply) {
    if (run_.facts().shards > 1) {
      return absl::FailedPreconditionError(
          absl::StrCat("kept state: got a run with ", run_.facts().shards,
                       " shards, want one server; start it without "
                       "--shard_addresses"));
    }
    if (request.moves_from() < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "moves_from: got ", request.moves_from(), ", want at least 0"));
    }
    // After the end, only a checkpoint needs it.
    const bool useful = actions_.keeps_checkpoints || !run_.facts().ended;
    const KeptStates::Holding holding{
        .version = Version(request.version()),
        .moves_from = Version(request.moves_from()),
        .last = request.last() && useful};
    COHORT_ASSIGN_OR_RETURN(bool wanted,
                            actions_.states->Hold(sender, holding));
    const std::optional<Sender> giver = actions_.states->giver();
    if (!wanted && giver.has_value() && !run_.RegisterProgress(*giver).ok()) {
      actions_.states->Forget(giver->incarnation);
      COHORT_ASSIGN_OR_RETURN(wanted, actions_.states->Hold(sender, holding));
    }
    reply.set_wanted(wanted);
    return absl::OkStatus();
  }

  absl::Status HandleGive(const Sender& sender, v1::GiveRequest& request,
                          v1::GiveReply& reply) {
    COHORT_ASSIGN_OR_RETURN(
        const KeptStates::Receipt receipt,
        actions_.states->Give(sender.rank,
                              {.version = Version(request.version()),
                               .offset = request.offset(),
                               .total = request.total(),
                               .bytes = std::move(*request.mutable_piece())}));
    if (receipt.awaits_run) {
      // No later version can be made before the sender is answered.
      COHORT_ASSIGN_OR_RETURN(RunState state, run_.State());
      actions_.states->Capture(std::move(state));
    }
    reply.set_enough(receipt.enough);
    return absl::OkStatus();
  }

  absl::Status HandleTake(const Sender& sender, v1::TakeRequest& request,
                          v1::TakeReply& reply) {
    using Kind = KeptStates::Answer::Kind;
    COHORT_ASSIGN_OR_RETURN(const PushKey key,
                            cohort::FromProto(request.key()));
    if (request.members() < 1 || request.offset() < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("take: got ", request.members(), " members and offset ",
                       request.offset(), ", want at least 1 and at least 0"));
    }
    const Version version(request.version());
    COHORT_ASSIGN_OR_RETURN(
        KeptStates::Answer answer,
        actions_.states->Take({.rank = sender.rank,
                               .incarnation = sender.incarnation,
                               .version = version,
                               .attempt = key.attempt,
                               .members = request.members(),
                               .offset = request.offset()}));
    if (answer.kind == Kind::kInitial) {
      reply.set_answer(v1::TakeReply::ANSWER_INITIAL);
      return absl::OkStatus();
    }
    if (answer.kind == Kind::kHere) {
      reply.set_answer(v1::TakeReply::ANSWER_HERE);
      reply.set_moves_from(answer.moves_from.value());
      reply.set_total(answer.total);
      reply.set_piece(std::move(answer.piece));
      return absl::OkStatus();
    }
    COHORT_ASSIGN_OR_RETURN(const SharedVersion newest,
                            run_.Find(std::nullopt));
    // A push that an earlier incarnation had completed may have made it.
    if (newest->version > version) {
      reply.set_answer(v1::TakeReply::ANSWER_OVER);
      return absl::OkStatus();
    }
    reply.set_answer(v1::TakeReply::ANSWER_AWAITED);
    if (answer.kind == Kind::kRepeat) {
      return run_.MissesState(sender, key, /*lost=*/false);
    }
    if (answer.kind == Kind::kLost && !actions_.continues(version)) {
      return run_.MissesState(sender, key, /*lost=*/true);
    }
    return absl::OkStatus();
  }

  RunHost& run_;
  const KeptStateActions actions_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeKeptStateService(RunHost& run,
                                                    KeptStateActions actions) {
  return std::make_unique<KeptStateService>(run, std::move(actions));
}

}  // namespace cohort
