#include "cohort/v1/moments.grpc.pb.h"
#include "server/rpc/services.h"
#include "server/rpc/stream_starts.h"

namespace cohort {
namespace {

using RawMoments =
    v1::Moments::WithRawCallbackMethod_Reduce<v1::Moments::Service>;

class MomentsService final : public RawMoments {
 public:
  explicit MomentsService(RunHost& run) : run_(run) {}

  ByteBidiReactor* Reduce(grpc::CallbackServerContext* context) override {
    return StartReduce(run_, context);
  }

 private:
  RunHost& run_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeMomentsService(RunHost& run) {
  return std::make_unique<MomentsService>(run);
}

}  // namespace cohort
