#include "tests/rpc/hand_worker.h"

#include <chrono>

namespace cohort {
namespace {

constexpr std::chrono::seconds kDeadline(60);
constexpr int64_t kBatchSize = 2;

}  // namespace

v1::Status StatusFor(HandWorker& asking) {
  TimedContext context;
  v1::Status status;
  EXPECT_TRUE(asking.admin().GetStatus(&context, {}, &status).ok());
  return status;
}

void SetDeadline(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + kDeadline);
}

HandWorker::HandWorker(
    const std::string& address,
    const std::shared_ptr<grpc::ChannelCredentials>& credentials)
    : channel_(grpc::CreateChannel(address, credentials)),
      membership_(v1::Membership::NewStub(channel_)),
      parameters_(v1::Parameters::NewStub(channel_)),
      moments_(v1::Moments::NewStub(channel_)),
      admin_(v1::Admin::NewStub(channel_)) {}

HandWorker::~HandWorker() {
  if (session_.open()) BreakSession();
}

grpc::Status HandWorker::Join(std::optional<int32_t> rank,
                              const std::string& run_id) {
  session_ = SessionCall();
  SetDeadline(*session_.context);
  session_.stream = membership_->Session(session_.context.get());
  v1::SessionRequest request;
  v1::Join* join = request.mutable_join();
  if (rank.has_value()) join->set_rank(*rank);
  join->set_run_id(run_id);
  join->set_batch_size(kBatchSize);
  join->set_description("a hand-driven worker");
  session_.Write(request);
  const std::optional<v1::SessionReply> reply = session_.Read();
  if (!reply.has_value()) return session_.End();
  joined_ = reply->joined();
  sender_.set_run_id(joined_.run_id());
  sender_.set_rank(joined_.rank());
  sender_.set_incarnation(joined_.incarnation());
  return grpc::Status::OK;
}

std::optional<v1::Assignment> HandWorker::Await(v1::AssignmentKind kind) {
  while (std::optional<v1::SessionReply> reply = session_.Read()) {
    if (reply->assignment().kind() == kind) return reply->assignment();
  }
  return std::nullopt;
}

grpc::Status HandWorker::Leave() {
  v1::SessionRequest request;
  request.mutable_leave()->set_reason("done");
  session_.Write(request);
  return session_.End();
}

void HandWorker::BreakSession() {
  session_.context->TryCancel();
  session_.End();
}

RegisterCall HandWorker::BeginRegister(const v1::ModelLayout& layout,
                                       const v1::RunPlan& plan) {
  RegisterCall call;
  SetDeadline(*call.context);
  call.stream = parameters_->Register(call.context.get());
  v1::RegisterRequest first;
  *first.mutable_sender() = sender_;
  *first.mutable_layout() = layout;
  *first.mutable_plan() = plan;
  call.Write(first);
  return call;
}

grpc::Status HandWorker::FinishRegister(
    RegisterCall& call, const std::vector<std::vector<float>>& values) {
  const std::optional<v1::RegisterReply> reply = call.Read();
  if (reply.has_value() && reply->send_values()) {
    SendValues(call, *reply, values);
  }
  return call.End();
}

void HandWorker::SendValues(RegisterCall& call, const v1::RegisterReply& reply,
                            const std::vector<std::vector<float>>& values) {
  for (int32_t i = 0; i < reply.partitions_size(); ++i) {
    std::vector<float> elements;
    for (const v1::Slice& slice : reply.partitions(i).slices()) {
      const auto from = values[static_cast<size_t>(slice.parameter())].begin() +
                        slice.offset_elements();
      elements.insert(elements.end(), from, from + slice.count_elements());
    }
    v1::RegisterRequest next;
    *next.mutable_sender() = sender_;
    next.set_partition(i);
    next.set_encoding(v1::ENCODING_FLOAT32);
    next.set_payload(BytesOf(elements));
    call.Write(next);
  }
}

grpc::Status HandWorker::Register(
    const v1::ModelLayout& layout, const v1::RunPlan& plan,
    const std::vector<std::vector<float>>& values) {
  RegisterCall call = BeginRegister(layout, plan);
  return FinishRegister(call, values);
}

ExchangeCall HandWorker::OpenExchange() {
  ExchangeCall call;
  SetDeadline(*call.context);
  call.stream = parameters_->Exchange(call.context.get());
  return call;
}

v1::ExchangeRequest HandWorker::PartOf(const v1::Assignment& assignment) {
  v1::ExchangeRequest request;
  *request.mutable_sender() = sender_;
  request.mutable_key()->set_sequence(assignment.sequence());
  request.mutable_key()->set_attempt(assignment.attempt());
  return request;
}

v1::ExchangeRequest HandWorker::Opening(const v1::Assignment& assignment,
                                        int64_t samples) {
  v1::ExchangeRequest request = PartOf(assignment);
  request.mutable_opening()->set_samples(samples);
  request.mutable_opening()->set_loss_weight(static_cast<double>(samples));
  request.mutable_opening()->set_version(assignment.version());
  return request;
}

v1::ExchangeRequest HandWorker::Gradient(const v1::Assignment& assignment,
                                         const std::vector<float>& gradient) {
  v1::ExchangeRequest request = PartOf(assignment);
  request.mutable_gradient()->set_partition(0);
  request.mutable_gradient()->set_encoding(v1::ENCODING_FLOAT32);
  request.set_payload(BytesOf(gradient));
  return request;
}

v1::ExchangeRequest HandWorker::HalfGradient(
    const v1::Assignment& assignment, const std::vector<float>& gradient) {
  v1::ExchangeRequest request = Gradient(assignment, gradient);
  const std::string floats = std::move(*request.mutable_payload());
  request.clear_payload();
  for (size_t i = 0; i < floats.size(); i += 4) {
    request.mutable_payload()->append(floats, i + 2, 2);
  }
  request.mutable_gradient()->set_encoding(v1::ENCODING_BFLOAT16);
  return request;
}

v1::ExchangeRequest HandWorker::Closing(const v1::Assignment& assignment,
                                        double loss_sum) {
  v1::ExchangeRequest request = PartOf(assignment);
  v1::PushClosing* closing = request.mutable_closing();
  closing->set_loss_sum(loss_sum);
  closing->set_correct(1);
  closing->set_labels(assignment.range_end() - assignment.range_begin());
  for (int32_t calls : batch_norm_calls) closing->add_batch_norm_calls(calls);
  if (assignment.global_normalization()) {
    closing->set_contributions(contributions);
  }
  return request;
}

void HandWorker::Push(ExchangeCall& exchange, const v1::Assignment& assignment,
                      const std::vector<float>& gradient) {
  exchange.Write(
      Opening(assignment, assignment.range_end() - assignment.range_begin()));
  exchange.Write(Gradient(assignment, gradient));
  exchange.Write(Closing(assignment, 1.0));
}

ReduceCall HandWorker::OpenReduce() {
  ReduceCall call;
  SetDeadline(*call.context);
  call.stream = moments_->Reduce(call.context.get());
  return call;
}

v1::ReduceRequest HandWorker::Contribution(const v1::Assignment& assignment,
                                           int64_t count, double mean,
                                           double m2) {
  v1::ReduceRequest request;
  *request.mutable_sender() = sender_;
  request.mutable_key()->set_step(assignment.version());
  request.mutable_key()->set_attempt(assignment.attempt());
  request.mutable_key()->set_phase(v1::REDUCE_PHASE_FORWARD);
  request.set_count(count);
  request.set_values(BytesOf(std::vector<double>{mean, m2}));
  return request;
}

grpc::Status HandWorker::Pull(const v1::PullRequest& request,
                              std::vector<v1::PullReply>& replies) {
  TimedContext context;
  const std::unique_ptr<grpc::ClientReader<v1::PullReply>> reader =
      parameters_->Pull(&context, Sealed(request));
  v1::PullReply reply;
  while (reader->Read(&reply)) replies.push_back(reply);
  return reader->Finish();
}

grpc::Status HandWorker::Report(const v1::Assignment& assignment,
                                int64_t correct, v1::Assignment& next) {
  v1::ReportRequest request;
  const int64_t samples = assignment.range_end() - assignment.range_begin();
  request.set_samples(samples);
  request.set_loss_sum(static_cast<double>(samples));
  request.set_loss_weight(static_cast<double>(samples));
  request.set_correct(correct);
  request.set_labels(samples);
  return Report(assignment, std::move(request), next);
}

grpc::Status HandWorker::Report(const v1::Assignment& assignment,
                                v1::ReportRequest request,
                                v1::Assignment& next) {
  TimedContext context;
  *request.mutable_sender() = sender_;
  request.set_sequence(assignment.sequence());
  v1::ReportReply reply;
  const grpc::Status status =
      membership_->Report(&context, Sealed(request), &reply);
  next = reply.next();
  return status;
}

grpc::Status HandWorker::ReportMoments(const v1::Assignment& assignment,
                                       int64_t count, double mean, double m2,
                                       v1::Assignment& next) {
  v1::ReportRequest request;
  v1::CallMoments* call = request.mutable_collected()->add_calls();
  call->set_count(count);
  call->add_mean(mean);
  call->add_m2(m2);
  return Report(assignment, std::move(request), next);
}

}  // namespace cohort
