#include "server/rpc/handshake_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/time/time.h"
#include "common/clock.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;

constexpr char kNoCertificate[] =
    "Handshake failed with fatal error SSL_ERROR_SSL: peer did not return a "
    "certificate";
constexpr char kPlaintext[] = "SSL_ERROR_SSL: wrong version number";

class HandshakeClock final : public Clock {
 public:
  Instant Now() const override { return now_; }
  void Advance(absl::Duration by) { now_ = now_ + by; }

 private:
  Instant now_ = SteadyClock().Now();
};

TEST(HandshakeLogTest, OneLineAMinuteAndReason) {
  HandshakeClock clock;
  HandshakeLog log(clock);
  std::string line;
  EXPECT_TRUE(log.Take(kNoCertificate, line));
  EXPECT_THAT(line, HasSubstr("the client has no certificate"));
  EXPECT_TRUE(log.Take(kNoCertificate, line));
  EXPECT_EQ(line, "");
  EXPECT_TRUE(log.Take(kPlaintext, line));
  EXPECT_THAT(line, HasSubstr("does not speak TLS"));
  clock.Advance(absl::Minutes(1));
  EXPECT_TRUE(log.Take(kNoCertificate, line));
  EXPECT_THAT(line, HasSubstr("(2 since the last such line)"));
  EXPECT_EQ(log.failures(), 4);
}

TEST(HandshakeLogTest, OtherLinesAreNotTaken) {
  HandshakeClock clock;
  HandshakeLog log(clock);
  std::string line;
  EXPECT_FALSE(log.Take("connection reset", line));
  EXPECT_EQ(log.failures(), 0);
}

}  // namespace
}  // namespace cohort
