#include "cohort/v1/moments.grpc.pb.h"
#include "server/rpc/services.h"
#include "server/rpc/stream_starts.h"

namespace cohort {
namespace {

using RawMoments =
    v1::Moments::WithRawCallbackMethod_Reduce<v1::Moments::Service>;

class MomentsService final : public RawMoments {
 public:
  explicit MomentsService(Shard& shard) : shard_(shard) {}

  ByteBidiReactor* Reduce(grpc::CallbackServerContext* context) override {
    return StartReduce(shard_, context);
  }

 private:
  Shard& shard_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeMomentsService(Shard& shard) {
  return std::make_unique<MomentsService>(shard);
}

}  // namespace cohort
