#include <grpcpp/grpcpp.h>

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/v1/membership.grpc.pb.h"
#include "common/status_macros.h"
#include "common/wire/convert.h"
#include "common/wire/message_checksum.h"
#include "common/wire/status.h"
#include "server/rpc/caller.h"
#include "server/rpc/sender_check.h"
#include "server/rpc/services.h"
#include "server/rpc/stream_starts.h"
#include "server/streams/fault.h"

namespace cohort {
namespace {

using RawMembership = v1::Membership::WithRawCallbackMethod_Session<
    v1::Membership::WithCallbackMethod_Report<v1::Membership::Service>>;

class MembershipService final : public RawMembership {
 public:
  MembershipService(RunHost& run, CallCounts& counts, LocalDoor* local)
      : run_(run), counts_(counts), local_(local) {}

  ByteBidiReactor* Session(grpc::CallbackServerContext* context) override {
    return StartSession(
        run_, {context, "/cohort.v1.Membership/Session", counts_}, local_);
  }

  grpc::ServerUnaryReactor* Report(grpc::CallbackServerContext* context,
                                   const v1::ReportRequest* request,
                                   v1::ReportReply* reply) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(ToGrpcStatus(ServePeer(
        [&] { return HandleReport(CallerOf(*context), *request, *reply); })));
    return reactor;
  }

 private:
  absl::Status HandleReport(const Caller& caller, v1::ReportRequest request,
                            v1::ReportReply& reply) {
    // Before any field is used.
    COHORT_RETURN_IF_ERROR(TakeMessageChecksum(&request));
    COHORT_ASSIGN_OR_RETURN(Sender sender, cohort::FromProto(request.sender()));
    const absl::Status own = CheckRank(caller, sender.rank);
    if (!own.ok()) {
      run_.DeniedRank(caller.name);
      return own;
    }
    const Sequence sequence(request.sequence());
    absl::StatusOr<Assignment> next;
    if (request.has_collected()) {
      COHORT_ASSIGN_OR_RETURN(std::vector<CallMoments> calls,
                              cohort::FromProto(request.collected()));
      next = run_.ReportMoments(sender, sequence, std::move(calls));
    } else {
      COHORT_ASSIGN_OR_RETURN(EvaluationSums sums, cohort::FromProto(request));
      next = run_.ReportEvaluation(sender, sequence, sums);
    }
    COHORT_RETURN_IF_ERROR(next.status());
    ToProto(*next, reply.mutable_next());
    AddMessageChecksum(&reply);
    return absl::OkStatus();
  }

  RunHost& run_;
  CallCounts& counts_;
  LocalDoor* const local_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeMembershipService(RunHost& run,
                                                     CallCounts& counts,
                                                     LocalDoor* local) {
  return std::make_unique<MembershipService>(run, counts, local);
}

}  // namespace cohort
