#include "common/wire/status.h"

#include <gtest/gtest.h>

namespace cohort {
namespace {

TEST(WireStatusTest, EveryCodeAndTextComesBack) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "rank 3");
    const grpc::Status sent = ToGrpcStatus(status);
    EXPECT_EQ(static_cast<int>(sent.error_code()), code);
    EXPECT_EQ(FromGrpcStatus(sent), status);
  }
}

TEST(WireStatusTest, OkCarriesNoText) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_EQ(FromGrpcStatus(grpc::Status::OK), absl::OkStatus());
}

TEST(WireStatusTest, CodeOutsideTheListBecomesUnknown) {
  const grpc::Status odd(static_cast<grpc::StatusCode>(20), "from a proxy");
  EXPECT_EQ(FromGrpcStatus(odd), absl::UnknownError("from a proxy"));
}

TEST(WireStatusTest, ConnectionsThatFailEndWithTheSystemsWord) {
  EXPECT_EQ(ConnectionFailure(
                "failed to connect to all addresses; last error: UNKNOWN: "
                "ipv4:127.0.0.1:1: Failed to connect to remote host: "
                "Connection refused"),
            "Connection refused");
  EXPECT_EQ(ConnectionFailure(
                "failed to connect to all addresses; last error: UNKNOWN: "
                "ipv4:127.0.0.1:1: Ssl handshake failed: SSL_ERROR_SSL: "
                "error:0A000438:SSL routines::tlsv1 alert internal error"),
            "the TLS handshake failed: tlsv1 alert internal error");
  EXPECT_EQ(ConnectionFailure("DNS resolution failed for nowhere:7070: C-ares "
                              "status is not ARES_SUCCESS: Domain not found"),
            "Domain not found");
  EXPECT_EQ(ConnectionFailure("rank 0 is live: it frees in 9.8 s"),
            std::nullopt);
}

}  // namespace
}  // namespace cohort
