#include "cohort/v1/moments.grpc.pb.h"
#include "server/rpc/services.h"
#include "server/rpc/stream_starts.h"

namespace cohort {
namespace {

using RawMoments =
    v1::Moments::WithRawCallbackMethod_Reduce<v1::Moments::Service>;

class MomentsService final : public RawMoments {
 public:
  MomentsService(RunHost& run, CallCounts& counts)
      : run_(run), counts_(counts) {}

  ByteBidiReactor* Reduce(grpc::CallbackServerContext* context) override {
    return StartReduce(run_, {context, "/cohort.v1.Moments/Reduce", counts_});
  }

 private:
  RunHost& run_;
  CallCounts& counts_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeMomentsService(RunHost& run,
                                                  CallCounts& counts) {
  return std::make_unique<MomentsService>(run, counts);
}

}  // namespace cohort
