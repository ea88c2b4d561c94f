#include "server/shard/pull_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class SilentStream final : public Stream {
 public:
  void End(const absl::Status&) override {}
};

class PullTableTest : public ::testing::Test {
 protected:
  std::shared_ptr<Stream> Admitted(const std::string& peer, int64_t version) {
    auto stream = std::make_shared<SilentStream>();
    last_ = table_.Admit(stream, peer, Version(version), now_, evicted_);
    return stream;
  }

  PullTable table_{{.pulls = 3, .pulls_per_peer = 2, .versions = 2}};
  Instant now_ = absl::Seconds(1);
  StreamRegistry::Streams evicted_;
  absl::Status last_;
};

TEST_F(PullTableTest, StalledVersionMakesRoomForANewOne) {
  const auto old = Admitted("a", 1);
  const auto read = Admitted("b", 2);
  Admitted("c", 3);
  EXPECT_TRUE(absl::IsResourceExhausted(last_));
  now_ += absl::Seconds(2);
  table_.Progressed(read.get(), now_);
  Admitted("c", 3);
  EXPECT_TRUE(last_.ok());
  EXPECT_THAT(evicted_, ElementsAre(old));
}

TEST_F(PullTableTest, PeerHasItsShareAndAllHaveALimit) {
  const auto first = Admitted("a", 1);
  Admitted("a", 1);
  Admitted("a", 1);
  EXPECT_TRUE(absl::IsResourceExhausted(last_));
  Admitted("b", 1);
  EXPECT_TRUE(last_.ok());
  Admitted("c", 1);
  EXPECT_TRUE(absl::IsResourceExhausted(last_));
  EXPECT_THAT(evicted_, IsEmpty());
  table_.Forget(first.get());
  Admitted("c", 1);
  EXPECT_TRUE(last_.ok());
}

TEST_F(PullTableTest, ConnectionsWithoutANameShareTheLimitOfAllOnly) {
  for (int i = 0; i < 3; ++i) {
    Admitted("", 1);
    EXPECT_TRUE(last_.ok()) << last_;
  }
}

}  // namespace
}  // namespace cohort
