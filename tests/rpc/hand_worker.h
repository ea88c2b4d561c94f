#pragma once

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "cohort/v1/admin.grpc.pb.h"
#include "cohort/v1/membership.grpc.pb.h"
#include "cohort/v1/moments.grpc.pb.h"
#include "cohort/v1/parameters.grpc.pb.h"
#include "tests/fakes/sealed.h"

namespace cohort {

inline void ExpectOk(const grpc::Status& status) {
  EXPECT_TRUE(status.ok()) << status.error_message();
}

// Raw little-endian values, as sent over the wire.
template <typename T>
std::string BytesOf(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()),
                     values.size() * sizeof(T));
}
template <typename T>
std::vector<T> ValuesOf(const std::string& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}
inline std::vector<float> FloatsOf(const std::string& bytes) {
  return ValuesOf<float>(bytes);
}
inline std::vector<double> DoublesOf(const std::string& bytes) {
  return ValuesOf<double>(bytes);
}

// A channel without certificates.
inline std::shared_ptr<grpc::Channel> PlainChannel(const std::string& address) {
  return grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
}

// A bidirectional call and its context, which ends with the object. Every call
// has a deadline, so that a test that waits in vain fails.
template <typename Request, typename Reply>
struct Call {
  using Stream = grpc::ClientReaderWriter<Request, Reply>;

  std::unique_ptr<grpc::ClientContext> context =
      std::make_unique<grpc::ClientContext>();
  std::unique_ptr<Stream> stream;

  bool open() const { return stream != nullptr; }
  // A message without a checksum gets one.
  bool Write(const Request& request) { return stream->Write(Sealed(request)); }
  // Absent once the stream has ended.
  std::optional<Reply> Read() {
    Reply reply;
    if (!stream->Read(&reply)) return std::nullopt;
    return reply;
  }
  // Reads the rest and returns how the call ended.
  grpc::Status End() {
    Reply rest;
    while (stream->Read(&rest)) {
    }
    const grpc::Status status = stream->Finish();
    stream = nullptr;
    return status;
  }
};

using SessionCall = Call<v1::SessionRequest, v1::SessionReply>;
using RegisterCall = Call<v1::RegisterRequest, v1::RegisterReply>;
using ExchangeCall = Call<v1::ExchangeRequest, v1::ExchangeReply>;
using ReduceCall = Call<v1::ReduceRequest, v1::ReduceReply>;

// A worker driven by hand, with only the generated stubs and ordinary protobuf
// messages, as any client in any language could do.
class HandWorker {
 public:
  explicit HandWorker(const std::string& address,
                      const std::shared_ptr<grpc::ChannelCredentials>&
                          credentials = grpc::InsecureChannelCredentials());
  // Cancels all open calls.
  ~HandWorker();

  // Opens a session and joins. Returns the status of a refusal, or OK.
  grpc::Status Join(std::optional<int32_t> rank = std::nullopt,
                    const std::string& run_id = "");
  // The next assignment of this kind on the session; others are skipped.
  std::optional<v1::Assignment> Await(v1::AssignmentKind kind);
  // Leaves and returns how the session ended.
  grpc::Status Leave();
  // Breaks the session as a crash would.
  void BreakSession();

  // Sends the layout. The answer comes once all workers have.
  RegisterCall BeginRegister(const v1::ModelLayout& layout,
                             const v1::RunPlan& plan);
  // Awaits the answer, sends the values if it requests them, and awaits the
  // end. `values` has the elements of each parameter.
  grpc::Status FinishRegister(RegisterCall& call,
                              const std::vector<std::vector<float>>& values);
  // Sends the values in the partitions of `reply`.
  void SendValues(RegisterCall& call, const v1::RegisterReply& reply,
                  const std::vector<std::vector<float>>& values);
  // Both of the above, for a worker that waits for no other.
  grpc::Status Register(const v1::ModelLayout& layout, const v1::RunPlan& plan,
                        const std::vector<std::vector<float>>& values);

  ExchangeCall OpenExchange();
  // The three messages of a push; partition 0 carries all of `gradient`.
  v1::ExchangeRequest Opening(const v1::Assignment& assignment,
                              int64_t samples);
  v1::ExchangeRequest Gradient(const v1::Assignment& assignment,
                               const std::vector<float>& gradient);
  // The same in bfloat16; the lower half of each value must be zero.
  v1::ExchangeRequest HalfGradient(const v1::Assignment& assignment,
                                   const std::vector<float>& gradient);
  v1::ExchangeRequest Closing(const v1::Assignment& assignment,
                              double loss_sum);
  // Sends all three messages.
  void Push(ExchangeCall& exchange, const v1::Assignment& assignment,
            const std::vector<float>& gradient);

  ReduceCall OpenReduce();
  v1::ReduceRequest Contribution(const v1::Assignment& assignment,
                                 int64_t count, double mean, double m2);

  // Reads all replies, the header first.
  grpc::Status Pull(const v1::PullRequest& request,
                    std::vector<v1::PullReply>& replies);
  grpc::Status Report(const v1::Assignment& assignment, int64_t correct,
                      v1::Assignment& next);
  // Reports the given counts.
  grpc::Status Report(const v1::Assignment& assignment,
                      v1::ReportRequest counts, v1::Assignment& next);
  // Reports moments of one call of layer 0.
  grpc::Status ReportMoments(const v1::Assignment& assignment, int64_t count,
                             double mean, double m2, v1::Assignment& next);

  v1::Sender& sender() { return sender_; }
  const v1::JoinReply& joined() const { return joined_; }
  SessionCall& session() { return session_; }
  v1::Admin::Stub& admin() { return *admin_; }
  // Batch-norm calls that Closing reports, by layer.
  std::vector<int32_t> batch_norm_calls;
  // Contributions that it reports under global normalisation.
  int64_t contributions = 0;

 private:
  // A message about the push of `assignment`.
  v1::ExchangeRequest PartOf(const v1::Assignment& assignment);

  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Membership::Stub> membership_;
  std::unique_ptr<v1::Parameters::Stub> parameters_;
  std::unique_ptr<v1::Moments::Stub> moments_;
  std::unique_ptr<v1::Admin::Stub> admin_;
  SessionCall session_;
  v1::JoinReply joined_;
  v1::Sender sender_;
};

// One that has joined; fails the test if it cannot.
class JoinedWorker : public HandWorker {
 public:
  explicit JoinedWorker(const std::string& address,
                        std::optional<int32_t> rank = 0)
      : HandWorker(address) {
    const grpc::Status joined = Join(rank);
    EXPECT_TRUE(joined.ok()) << joined.error_message();
  }
};

// Matches the end of a call with this code and `part` in its message.
MATCHER_P2(EndedWith, code, part, "") {
  return arg.error_code() == code &&
         absl::StrContains(arg.error_message(), part);
}

// The status that an operator gets at this server; fails the test if none.
v1::Status StatusFor(HandWorker& asking);

// A context that ends before the test does.
void SetDeadline(grpc::ClientContext& context);
struct TimedContext : grpc::ClientContext {
  TimedContext() { SetDeadline(*this); }
};

}  // namespace cohort
