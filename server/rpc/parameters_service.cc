#include "cohort/v1/parameters.grpc.pb.h"
#include "server/rpc/services.h"
#include "server/rpc/stream_starts.h"

namespace cohort {
namespace {

using RawParameters = v1::Parameters::WithRawCallbackMethod_Register<
    v1::Parameters::WithRawCallbackMethod_Exchange<
        v1::Parameters::WithRawCallbackMethod_Pull<v1::Parameters::Service>>>;

class ParametersService final : public RawParameters {
 public:
  explicit ParametersService(Shard& shard) : shard_(shard) {}

  ByteBidiReactor* Register(grpc::CallbackServerContext* context) override {
    return StartRegister(shard_, context);
  }

  ByteBidiReactor* Exchange(grpc::CallbackServerContext* context) override {
    return StartExchange(shard_, context);
  }

  ByteWriteReactor* Pull(grpc::CallbackServerContext* context,
                         const grpc::ByteBuffer* request) override {
    return StartPull(shard_, context, *request);
  }

 private:
  Shard& shard_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeParametersService(Shard& shard) {
  return std::make_unique<ParametersService>(shard);
}

}  // namespace cohort
