#include "common/wire/channel.h"

#include <grpc/compression.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <stdlib.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "common/listen_address.h"
#include "common/wire/security.h"

namespace cohort {
namespace {

constexpr int kMiB = 1 << 20;

// The largest frame that HTTP/2 allows. Large frames cost less CPU a byte, and
// no small messages share a connection with them.
constexpr int kFrameBytesMax = 16 * kMiB - 1;

// gRPC's default; with less, a stream cannot use a link fully.
constexpr int64_t kLookaheadBytesMin = 64 << 10;

constexpr int kKeepaliveMs = 10'000;
constexpr int kKeepaliveTimeoutMs = 5'000;
// The server ends a connection that is pinged more often, so this stays below
// kKeepaliveMs.
constexpr int kMinPingIntervalMs = 5'000;

struct Setting {
  const char* name;
  int value;
};

// Measured to help with large partitions (DESIGN.md, section 4), on both sides.
constexpr Setting kThroughput[] = {
    {GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kFrameBytesMax},
    // The probe resizes windows by estimates; a fixed look-ahead is used
    // instead.
    {GRPC_ARG_HTTP2_BDP_PROBE, 0},
    {GRPC_ARG_HTTP2_WRITE_BUFFER_SIZE, 8 * kMiB},
};

constexpr Setting kCommon[] = {
    {GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, kMessageBytesMax},
    {GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, kMessageBytesMax},
    {GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs},
    {GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1},
    {GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0},
    // No compression. Gradients do not compress, and without it no message can
    // inflate beyond its limit.
    {GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET,
     1 << GRPC_COMPRESS_NONE},
};

constexpr Setting kServer[] = {
    // Otherwise a second server could bind the port and split the workers.
    {GRPC_ARG_ALLOW_REUSEPORT, 0},
    {GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kBulkKeepaliveTimeoutMs},
    {GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kMinPingIntervalMs},
    // Limits how long an idle new connection holds a file descriptor.
    {GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10'000},
    // Limits the calls of a connection; a worker has fewer than ten on each.
    {GRPC_ARG_MAX_CONCURRENT_STREAMS, 128},
};

constexpr Setting kClient[] = {
    {GRPC_ARG_ENABLE_HTTP_PROXY, 0},
    // The client re-sends with the same identity. gRPC's own retries cannot
    // cover gradients and would buffer every message needlessly.
    {GRPC_ARG_ENABLE_RETRIES, 0},
    {GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1},
    {GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100},
    // The limit on one attempt to connect. A server on a busy machine may need
    // seconds for the handshake; where no process listens an attempt ends at
    // once.
    {GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5'000},
    {GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1'000},
    {GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 1'000},
    // A lost DNS query is repeated after this time; by default the resolver
    // waits for more than a minute.
    {GRPC_ARG_DNS_ARES_QUERY_TIMEOUT_MS, 5'000},
    // By default all channels of a process with equal arguments share
    // connections, even across purposes and clients.
    {GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1},
};

template <typename Target, typename Settings>
void Apply(Target&& set, const Settings& settings) {
  for (const Setting& setting : settings) set(setting.name, setting.value);
}

template <typename Target>
void ApplyChunk(Target&& set, const ReadChunk& read) {
  set(GRPC_ARG_TCP_READ_CHUNK_SIZE, static_cast<int>(read.first_bytes));
  set(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, static_cast<int>(read.bytes_max));
}

// gRPC's name of an address. It reads that of a Unix socket as a part of a URI,
// and takes one that is none for a host.
std::string TargetOf(const std::string& server) {
  const absl::StatusOr<ListenAddress> address =
      ParseListenAddress("server", server);
  if (!address.ok() || !address->is_unix()) return server;
  std::string target;
  for (const char c : address->ToString()) {
    if (absl::ascii_isalnum(c) || absl::StrContains("-._~/:", c)) {
      target += c;
    } else {
      absl::StrAppendFormat(&target, "%%%02X", static_cast<unsigned char>(c));
    }
  }
  return target;
}

}  // namespace

int64_t LookaheadBytes(int64_t inflight_bytes_max, int32_t workers) {
  const int64_t share =
      inflight_bytes_max / (2 * std::max<int64_t>(workers, 1));
  return std::clamp<int64_t>(share, kLookaheadBytesMin, kLookaheadBytesMax);
}

void ApplyProcessSettings() {
  setenv("GRPC_EXPERIMENTS", "tcp_frame_size_tuning,tcp_rcv_lowat",
         /*overwrite=*/0);
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

ReadChunk ReadChunkFor(int32_t workers) {
  // Connections of each worker to the server.
  constexpr int64_t kConnections = 3;
  // As much as the connections of 64 workers take with 1 MiB each.
  constexpr int64_t kBytesAtFirst = int64_t{192} * kMiB;
  constexpr int64_t kBytesMin = 8 << 10;
  const ReadChunk most;
  const int64_t share =
      kBytesAtFirst / (kConnections * std::max<int64_t>(workers, 1));
  const int64_t first = std::clamp<int64_t>(share, kBytesMin, most.first_bytes);
  return {.first_bytes = first,
          .bytes_max = most.bytes_max / most.first_bytes * first};
}

void ApplyServerSettings(grpc::ServerBuilder& builder, int64_t lookahead_bytes,
                         ReadChunk read) {
  const auto set = [&builder](const char* name, int value) {
    builder.AddChannelArgument(name, value);
  };
  // The builder overwrites these two arguments with its own fields.
  builder.SetMaxReceiveMessageSize(kMessageBytesMax);
  builder.SetMaxSendMessageSize(kMessageBytesMax);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  Apply(set, kCommon);
  Apply(set, kThroughput);
  ApplyChunk(set, read);
  set(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, static_cast<int>(lookahead_bytes));
  Apply(set, kServer);
}

grpc::ChannelArguments MakeChannelArguments(ChannelPurpose purpose) {
  grpc::ChannelArguments arguments;
  const auto set = [&arguments](const char* name, int value) {
    arguments.SetInt(name, value);
  };
  const bool bulk = purpose == ChannelPurpose::kBulk;
  Apply(set, kCommon);
  Apply(set, kClient);
  if (bulk) {
    Apply(set, kThroughput);
    ApplyChunk(set, ReadChunk());
    set(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES,
        static_cast<int>(kLookaheadBytesMax));
  }
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                   bulk ? kBulkKeepaliveTimeoutMs : kKeepaliveTimeoutMs);
  return arguments;
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& server,
                                           ChannelPurpose purpose,
                                           const SharedSecurity& security) {
  return grpc::CreateCustomChannel(TargetOf(server),
                                   security == nullptr
                                       ? grpc::InsecureChannelCredentials()
                                       : security->ForChannel(),
                                   MakeChannelArguments(purpose));
}

}  // namespace cohort
