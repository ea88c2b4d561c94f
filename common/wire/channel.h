#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/channel_arguments.h>

#include <cstdint>
#include <memory>
#include <string>

namespace cohort {

// What a client's connection carries. One connection a purpose: a heartbeat or
// a rendezvous must never wait behind 100 MB of gradients.
enum class ChannelPurpose { kControl, kMoments, kBulk };

// Largest message either side accepts. A partition is about 1 MiB, but one
// message carries the whole layout with its moving statistics.
inline constexpr int kMessageBytesMax = 64 << 20;

// Measured to help on large partitions.
inline constexpr int64_t kLookaheadBytesMax = int64_t{64} << 20;

// A ping's answer queues behind the data of its connection, and a slow link
// must not be taken for a dead one. Deaths are noticed on the control channel.
inline constexpr int kBulkKeepaliveTimeoutMs = 20'000;

// Applies Cohort's transport settings: message limits, HTTP/2 frames and
// buffers for large partitions, keepalive, an exclusive port, no compression.
// Listening port, credentials and services stay the caller's.
void ApplyServerSettings(grpc::ServerBuilder& builder,
                         int64_t lookahead_bytes = kLookaheadBytesMax);

// What each stream may send ahead of being read, so that all streams of
// `workers` workers that are paused hold at most half of the limit on gradients
// once more. Between 64 KiB and kLookaheadBytesMax.
int64_t LookaheadBytes(int64_t inflight_bytes_max, int32_t workers);

// The same for a client's channel. Two channels made with these arguments
// never share a connection, whatever their purpose.
grpc::ChannelArguments MakeChannelArguments(ChannelPurpose purpose);

// A plaintext channel to `server` (host:port). Connects on first use.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& server,
                                           ChannelPurpose purpose);

}  // namespace cohort
