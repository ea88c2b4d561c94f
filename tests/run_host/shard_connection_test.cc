#include "server/partitions/shard_connection.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace cohort {
namespace {

constexpr int kSilentMax = 3;

ShardConnection Connecting() {
  ShardConnection connection("data shard 1 at b:1", kSilentMax);
  connection.Begin();
  return connection;
}

struct EndCase {
  std::string name;
  // What happens before the end.
  std::function<void(ShardConnection&)> before;
  absl::Status end;
  absl::Status why;
  bool lost = false;
};

void Attach(ShardConnection& connection) {
  connection.Heard();
  connection.Attached();
}

void FallSilent(ShardConnection& connection) {
  Attach(connection);
  for (int i = 1; i < kSilentMax; ++i) EXPECT_FALSE(connection.CheckAlive());
  EXPECT_TRUE(connection.CheckAlive());
}

TEST(ShardConnectionTest, AnEndHasItsReasonAndIsALossOnceAttached) {
  const auto because = [](const char* text) {
    return absl::UnavailableError(std::string("data shard 1 at b:1: ") + text);
  };
  const std::vector<EndCase> cases = {
      {"before it is attached", [](ShardConnection&) {},
       absl::UnavailableError("refused"), because("refused")},
      {"attached", Attach, absl::UnavailableError("the connection was lost"),
       because("the connection was lost"), true},
      {"ended by the data shard", Attach, absl::OkStatus(),
       because("it ended the connection"), true},
      {"an error keeps its code", Attach, absl::InvalidArgumentError("no fold"),
       absl::InvalidArgumentError("data shard 1 at b:1: no fold"), true},
      {"leaving",
       [](ShardConnection& c) {
         Attach(c);
         c.Leaving();
       },
       absl::CancelledError("cancelled"), because("it is being stopped"), true},
      {"silent", FallSilent, absl::CancelledError("cancelled"),
       because("it has said nothing for 3 s (--shard_lease)"), true},
      {"a late message hides nothing",
       [](ShardConnection& c) {
         FallSilent(c);
         c.Heard();
         c.Leaving();
       },
       absl::CancelledError("cancelled"),
       because("it has said nothing for 3 s (--shard_lease)"), true},
      {"closed here",
       [](ShardConnection& c) {
         Attach(c);
         c.Close();
       },
       absl::CancelledError("cancelled"), because("cancelled")}};
  for (const EndCase& one : cases) {
    SCOPED_TRACE(one.name);
    ShardConnection connection = Connecting();
    one.before(connection);
    EXPECT_EQ(connection.Ended(one.end), one.lost);
    EXPECT_FALSE(connection.open());
    EXPECT_EQ(connection.Usable(), one.why);
  }
}

TEST(ShardConnectionTest, AnAttemptIsSettledByTheAttachmentOrTheEnd) {
  ShardConnection connection = Connecting();
  EXPECT_FALSE(connection.settled());
  connection.Leaving();
  EXPECT_FALSE(connection.settled());
  connection.Ended(absl::CancelledError("cancelled"));
  EXPECT_TRUE(connection.settled());
  EXPECT_EQ(connection.result(), std::nullopt);

  connection.Begin();
  EXPECT_FALSE(connection.settled());
  Attach(connection);
  EXPECT_TRUE(connection.settled());
  EXPECT_EQ(connection.result(), absl::OkStatus());
  // What it said before the first attempt had failed is forgotten.
  connection.Ended(absl::OkStatus());
  EXPECT_EQ(connection.Usable().message(),
            "data shard 1 at b:1: it ended the connection");
}

TEST(ShardConnectionTest, OnlyAnUnavailableDataShardIsTriedAgain) {
  for (const absl::Status& end :
       {absl::OkStatus(), absl::UnavailableError("gone"),
        absl::CancelledError("left")}) {
    ShardConnection connection = Connecting();
    connection.Ended(end);
    EXPECT_EQ(connection.result(), std::nullopt) << end;
  }
  for (const absl::Status& end : {absl::UnimplementedError("no data shard"),
                                  absl::AlreadyExistsError("of another run"),
                                  absl::AbortedError("an older start")}) {
    ShardConnection connection = Connecting();
    connection.Ended(end);
    ASSERT_TRUE(connection.result().has_value()) << end;
    EXPECT_EQ(connection.result()->code(), end.code());
  }
}

TEST(ShardConnectionTest, AMessageStartsTheSilenceAgain) {
  ShardConnection connection = Connecting();
  EXPECT_FALSE(connection.CheckAlive());
  Attach(connection);
  for (int i = 0; i < 3 * kSilentMax; ++i) {
    EXPECT_FALSE(connection.CheckAlive());
    connection.Heard();
  }
  FallSilent(connection);
  EXPECT_FALSE(connection.CheckAlive());
}

TEST(ShardConnectionTest, AClosedConnectionFetchesNothing) {
  ShardConnection connection = Connecting();
  Attach(connection);
  EXPECT_EQ(connection.Usable(), absl::OkStatus());
  connection.Close();
  EXPECT_TRUE(connection.open());
  EXPECT_TRUE(absl::IsUnavailable(connection.Usable()));
}

}  // namespace
}  // namespace cohort
