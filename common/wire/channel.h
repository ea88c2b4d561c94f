#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/channel_arguments.h>

#include <cstdint>
#include <memory>
#include <string>

#include "common/wire/shared_security.h"

namespace cohort {

// The traffic of a client's connection. Each purpose has its own connection: a
// heartbeat or a rendezvous must never wait behind 100 MB of gradients.
enum class ChannelPurpose { kControl, kMoments, kBulk };

// Largest message either side accepts. A partition is about 1 MiB, but one
// message carries the whole layout with its moving statistics.
inline constexpr int kMessageBytesMax = 64 << 20;

// Measured to help with large partitions.
inline constexpr int64_t kLookaheadBytesMax = int64_t{64} << 20;

// The reply to a ping queues behind the data of its connection, and a slow link
// must not be taken for a dead one. The control channel detects dead peers.
inline constexpr int kBulkKeepaliveTimeoutMs = 20'000;

// Bytes that a server reads of a connection at once, at first and at most. gRPC
// keeps the first for every connection, however small its messages are, and
// learns from what arrives.
struct ReadChunk {
  int64_t first_bytes = 1 << 20;
  int64_t bytes_max = 4 << 20;
};
// Chosen so that the connections of `workers` workers keep at most 192 MiB at
// first. At least what gRPC reads by default.
ReadChunk ReadChunkFor(int32_t workers);

// Settings of gRPC for the whole process. Call it before gRPC is used, while no
// other thread reads the environment.
//
// Sets GRPC_EXPERIMENTS, unless the environment has it, so that large messages
// arrive in fewer and larger reads: gRPC then wakes a thread when a piece that
// is worth it has come, and reads into buffers of that size. A step of 98 MiB
// over loopback took 0.83 of the time, a short message as long as before.
// Processes that are started later inherit the variable.
//
// Turns off Abseil's search for locks that are taken in different orders, which
// builds of it without NDEBUG, such as Debian's, make at every lock of gRPC,
// under one lock of the process. Our own locks are not Abseil's, and the search
// finds nothing in gRPC that a user could mend.
void ApplyProcessSettings();

// Applies Cohort's transport settings: message limits, HTTP/2 frames and
// buffers for large partitions, keepalive, an exclusive port, no compression.
// The caller sets the listening port, credentials and services.
void ApplyServerSettings(grpc::ServerBuilder& builder,
                         int64_t lookahead_bytes = kLookaheadBytesMax,
                         ReadChunk read = ReadChunk());

// The number of bytes that each stream may send before they are read. Chosen so
// that all paused streams of `workers` workers hold at most another half of the
// limit on gradients. Between 64 KiB and kLookaheadBytesMax.
int64_t LookaheadBytes(int64_t inflight_bytes_max, int32_t workers);

// The same settings for a client's channel. Two channels made with these
// arguments never share a connection, whatever their purpose.
grpc::ChannelArguments MakeChannelArguments(ChannelPurpose purpose);

// A channel to `server` (host:port or a Unix socket), in plaintext if
// `security` is null. Connects on first use.
std::shared_ptr<grpc::Channel> MakeChannel(
    const std::string& server, ChannelPurpose purpose,
    const SharedSecurity& security = nullptr);

}  // namespace cohort
