#include "cohort/v1/parameters.grpc.pb.h"
#include "server/rpc/services.h"
#include "server/rpc/stream_starts.h"

namespace cohort {
namespace {

constexpr char kExchange[] = "/cohort.v1.Parameters/Exchange";

using RawParameters = v1::Parameters::WithRawCallbackMethod_Register<
    v1::Parameters::WithRawCallbackMethod_Exchange<
        v1::Parameters::WithRawCallbackMethod_Pull<v1::Parameters::Service>>>;

class ParametersService final : public RawParameters {
 public:
  ParametersService(RunHost& run, CallCounts& counts, LocalDoor* local)
      : run_(run), counts_(counts), local_(local) {}

  ByteBidiReactor* Register(grpc::CallbackServerContext* context) override {
    return StartRegister(run_,
                         {context, "/cohort.v1.Parameters/Register", counts_});
  }

  ByteBidiReactor* Exchange(grpc::CallbackServerContext* context) override {
    return StartExchange(run_.partitions(), &run_,
                         {context, kExchange, counts_}, local_);
  }

  ByteWriteReactor* Pull(grpc::CallbackServerContext* context,
                         const grpc::ByteBuffer* request) override {
    return StartPull(run_.partitions(), &run_, context, *request);
  }

 private:
  RunHost& run_;
  CallCounts& counts_;
  // Null if there is no shared memory.
  LocalDoor* const local_;
};

using RawDataParameters = v1::Parameters::WithRawCallbackMethod_Exchange<
    v1::Parameters::WithRawCallbackMethod_Pull<v1::Parameters::Service>>;

class DataParametersService final : public RawDataParameters {
 public:
  DataParametersService(PartitionsHost& host, CallCounts& counts)
      : host_(host), counts_(counts) {}

  ByteBidiReactor* Exchange(grpc::CallbackServerContext* context) override {
    return StartExchange(host_, nullptr, {context, kExchange, counts_},
                         nullptr);
  }
  ByteWriteReactor* Pull(grpc::CallbackServerContext* context,
                         const grpc::ByteBuffer* request) override {
    return StartPull(host_, nullptr, context, *request);
  }

 private:
  PartitionsHost& host_;
  CallCounts& counts_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeDataParametersService(PartitionsHost& host,
                                                         CallCounts& counts) {
  return std::make_unique<DataParametersService>(host, counts);
}

std::unique_ptr<grpc::Service> MakeParametersService(RunHost& run,
                                                     CallCounts& counts,
                                                     LocalDoor* local) {
  return std::make_unique<ParametersService>(run, counts, local);
}

}  // namespace cohort
