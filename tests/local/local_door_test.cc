// The server's side of shared memory together with the worker's.
#include "server/local/local_door.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/local/boot_id.h"
#include "common/local/local_messages.h"
#include "tests/fakes/statuses.h"
#include "tests/fakes/temp_dir.h"
#include "worker/client/local_link.h"

namespace cohort {
namespace {

constexpr int64_t kElements = 6;
constexpr Rank kRank{1};
constexpr Incarnation kFirst{7};
constexpr Incarnation kSecond{8};
constexpr PushKey kPush{.sequence = Sequence(1)};
constexpr PushKey kNextPush{.sequence = Sequence(2)};

absl::Status Ok() { return absl::OkStatus(); }

ByteRope RopeOver(const std::vector<float>& values) {
  return ByteRope::Copy(
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values.data()),
                          values.size() * sizeof(float)));
}

std::vector<float> FloatsOf(const ByteRope& rope) {
  std::vector<float> floats(static_cast<size_t>(rope.size_bytes()) / 4);
  rope.CopyTo(absl::MakeSpan(reinterpret_cast<std::byte*>(floats.data()),
                             floats.size() * 4));
  return floats;
}

int OpenFiles() {
  int count = 0;
  for ([[maybe_unused]] const auto& file :
       std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

// Sends every message back.
class Echo final : public LocalService {
 public:
  explicit Echo(std::shared_ptr<LocalPeer> peer) : peer_(std::move(peer)) {}

  void OnMessage(std::string message) override {
    ++messages;
    (void)peer_->Send(message);
  }
  void OnDamage(const absl::Status& status) override {
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    ++damages;
  }
  void OnGone() override { ++gone; }

  std::atomic<int> messages = 0;
  std::atomic<int> damages = 0;
  std::atomic<int> gone = 0;

 private:
  const std::shared_ptr<LocalPeer> peer_;
};

class LocalDoorTest : public ::testing::Test {
 protected:
  void SetUp() override { OpenDoor(0); }

  void OpenDoor(int64_t arena_bytes_max) {
    door_.reset();
    auto door = LocalDoor::Open(
        {.directory = dir_.path(),
         .weights = files_,
         .needs = [this]() -> std::optional<LocalNeeds> {
           if (!registered_) return std::nullopt;
           return LocalNeeds{.partitions = partitions_, .message_bytes = 256};
         },
         .serve =
             [this](Rank, Incarnation, std::shared_ptr<LocalPeer> peer) {
               service_ = std::make_shared<Echo>(std::move(peer));
               return service_;
             },
         .arena_bytes_max = arena_bytes_max},
        clock_);
    ASSERT_TRUE(door.ok()) << door.status();
    door_ = *std::move(door);
  }

  absl::StatusOr<std::unique_ptr<LocalLink>> Connect(
      const LocalDoor::Offer& offer) {
    return LocalLink::Connect(offer.socket, offer.token, partitions_);
  }

  // Connects as kRank.
  std::unique_ptr<LocalLink> Enter(Incarnation incarnation = kFirst) {
    auto link = Connect(door_->Invite(kRank, incarnation));
    EXPECT_TRUE(link.ok()) << link.status();
    return link.ok() ? *std::move(link) : nullptr;
  }

  absl::Status Write(LocalLink& link, int32_t partition,
                     const std::vector<float>& values) {
    return link.Write(partition, RopeOver(values), clock_, absl::Seconds(30),
                      Ok);
  }

  SharedFloats NewWeights(float value) {
    auto buffer = pool_.TakeShared(kElements);
    for (float& element : buffer->mutable_span()) element = value;
    return buffer;
  }

  // The next message from the server.
  std::string Answer(LocalLink& link) {
    for (;;) {
      auto message = link.ReceiveMessage();
      EXPECT_TRUE(message.ok()) << message.status();
      if (!message.ok()) return "";
      if (message->has_value()) return **std::move(message);
      link.WaitForMessage(absl::Seconds(30));
    }
  }

  // Waits until the server has noticed that the worker is gone.
  void AwaitGone() {
    while (door_->Find(kRank, kFirst) != nullptr) {
      std::this_thread::yield();
    }
  }

  TempDir dir_;
  SteadyClock clock_;
  std::atomic<bool> registered_ = true;
  const std::vector<Partition> partitions_ = {{.elements = kElements},
                                              {.elements = 2}};
  const std::shared_ptr<SharedFloatFiles> files_ =
      std::make_shared<SharedFloatFiles>(4096);
  FloatBufferPool pool_{files_};
  // The service of the worker that connected last.
  std::shared_ptr<Echo> service_;
  std::unique_ptr<LocalDoor> door_;
};

TEST_F(LocalDoorTest, AGradientIsReadWhereTheWorkerWroteIt) {
  const auto link = Enter();
  const auto peer = door_->Find(kRank, kFirst);
  ASSERT_NE(peer, nullptr);
  ASSERT_TRUE(Write(*link, 1, {3, 4}).ok());
  ASSERT_TRUE(Write(*link, 0, {1, 2, 3, 4, 5, 6}).ok());
  EXPECT_EQ(FloatsOf(*peer->Gradient(1)), (std::vector<float>{3, 4}));
  EXPECT_EQ(FloatsOf(*peer->Gradient(0)),
            (std::vector<float>{1, 2, 3, 4, 5, 6}));
}

TEST_F(LocalDoorTest, AGradientInBFloat16TakesHalfOfItsPlace) {
  const auto link = Enter();
  const auto peer = door_->Find(kRank, kFirst);
  ASSERT_NE(peer, nullptr);
  // Two elements.
  ExpectOk(link->Write(1, ByteRope::CopyText("abcd"), clock_, absl::Seconds(30),
                       Ok));
  const auto gradient = OkValue(peer->Gradient(1, ElementType::kBFloat16));
  EXPECT_EQ(gradient.ToString(), "abcd");
}

TEST_F(LocalDoorTest, AGradientIsNotOverwrittenBeforeItIsReleased) {
  const auto link = Enter();
  const auto peer = door_->Find(kRank, kFirst);
  ASSERT_TRUE(Write(*link, 1, {3, 4}).ok());
  absl::StatusOr<ByteRope> gradient = peer->Gradient(1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      link->Write(1, RopeOver({5, 6}), clock_, absl::Milliseconds(1), Ok)));
  EXPECT_EQ(FloatsOf(*gradient), (std::vector<float>{3, 4}));

  std::thread later([&gradient] { *gradient = ByteRope(); });
  EXPECT_TRUE(Write(*link, 1, {5, 6}).ok());
  later.join();
  EXPECT_EQ(FloatsOf(*peer->Gradient(1)), (std::vector<float>{5, 6}));
}

TEST_F(LocalDoorTest, AGradientThatWasNotAnnouncedIsNotWaitedFor) {
  const auto link = Enter();
  const auto peer = door_->Find(kRank, kFirst);
  ASSERT_TRUE(Write(*link, 1, {3, 4}).ok());
  link->TakeBack(1);
  ASSERT_TRUE(Write(*link, 1, {5, 6}).ok());
  EXPECT_EQ(FloatsOf(*peer->Gradient(1)), (std::vector<float>{5, 6}));
}

TEST_F(LocalDoorTest, AWaitEndsIfTheConnectionDoes) {
  const auto link = Enter();
  const auto peer = door_->Find(kRank, kFirst);
  ASSERT_TRUE(Write(*link, 1, {3, 4}).ok());
  const absl::StatusOr<ByteRope> held = peer->Gradient(1);
  EXPECT_THAT(link->Write(1, RopeOver({5, 6}), clock_, absl::InfiniteDuration(),
                          [] { return absl::UnavailableError("broken"); }),
              IsError(kUnavailable, ""));
}

TEST_F(LocalDoorTest, WeightsAreReadWhereTheyLie) {
  const auto link = Enter();
  const auto peer = door_->Find(kRank, kFirst);
  // From files that were there before the worker, and from later ones.
  for (int i = 0; i < 300; ++i) {
    const SharedFloats weights = NewWeights(static_cast<float>(i));
    const auto place = OkValue(peer->Share(kPush, weights));
    const auto seen = OkValue(link->Weights(place, kElements));
    EXPECT_EQ(FloatsOf(seen),
              std::vector<float>(kElements, static_cast<float>(i)));
  }
  EXPECT_GT(files_->FilesFrom(0).size(), 2u);
}

TEST_F(LocalDoorTest, WeightsStayUntilTheNextPushIsOpened) {
  const auto link = Enter();
  const auto peer = door_->Find(kRank, kFirst);
  std::weak_ptr<const FloatBuffer> before;
  {
    const SharedFloats weights = NewWeights(1);
    before = weights;
    ASSERT_TRUE(peer->Share(kPush, weights).has_value());
  }
  peer->Opened(kPush);
  EXPECT_FALSE(before.expired());
  peer->Opened(kNextPush);
  EXPECT_TRUE(before.expired());
}

TEST_F(LocalDoorTest, WeightsStayUntilTheWorkerIsGone) {
  auto link = Enter();
  std::weak_ptr<const FloatBuffer> before;
  {
    const SharedFloats weights = NewWeights(1);
    before = weights;
    ASSERT_TRUE(door_->Find(kRank, kFirst)->Share(kPush, weights).has_value());
  }
  link.reset();
  AwaitGone();
  while (!before.expired()) std::this_thread::yield();
}

TEST_F(LocalDoorTest, WeightsOutsideSharedMemoryAreSentAsBytes) {
  const auto link = Enter();
  const SharedFloats own = pool_.Take(kElements);
  EXPECT_FALSE(door_->Find(kRank, kFirst)->Share(kPush, own).has_value());
}

TEST_F(LocalDoorTest, AWorkerThatCannotBeToldGetsBytes) {
  auto link = Enter();
  const auto peer = door_->Find(kRank, kFirst);
  link.reset();
  AwaitGone();
  EXPECT_FALSE(peer->Share(kPush, NewWeights(1)).has_value());
}

TEST_F(LocalDoorTest, AWrongPlaceIsDamage) {
  const auto link = Enter();
  const auto place =
      OkValue(door_->Find(kRank, kFirst)->Share(kPush, NewWeights(1)));
  for (const SharedPlace wrong :
       {SharedPlace{.file = 9}, SharedPlace{.file = -1},
        SharedPlace{.offset = -64}, SharedPlace{.offset = 3},
        SharedPlace{.offset = 4096}, SharedPlace{.offset = INT64_MAX - 63}}) {
    EXPECT_TRUE(absl::IsDataLoss(link->Weights(wrong, kElements).status()))
        << wrong.file << " " << wrong.offset;
  }
  EXPECT_TRUE(absl::IsDataLoss(link->Weights(place, 1 << 20).status()));
}

TEST_F(LocalDoorTest, ThereIsNoGradientOfAnUnknownPartition) {
  const auto link = Enter();
  const auto peer = door_->Find(kRank, kFirst);
  EXPECT_TRUE(absl::IsInvalidArgument(peer->Gradient(2).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(peer->Gradient(-1).status()));
}

TEST_F(LocalDoorTest, ATokenIsValidOnce) {
  const LocalDoor::Offer offer = door_->Invite(kRank, kFirst);
  const auto link = OkValue(Connect(offer));
  const auto again = Connect(offer);
  EXPECT_TRUE(absl::IsPermissionDenied(again.status())) << again.status();
  EXPECT_NE(door_->Find(kRank, kFirst), nullptr);
}

TEST_F(LocalDoorTest, AStrangerIsRefused) {
  LocalDoor::Offer offer = door_->Invite(kRank, kFirst);
  offer.token = std::string(local::kTokenBytes, '0');
  EXPECT_TRUE(absl::IsPermissionDenied(Connect(offer).status()));
  offer.token.clear();
  EXPECT_TRUE(absl::IsInvalidArgument(Connect(offer).status()));
  EXPECT_EQ(door_->Find(kRank, kFirst), nullptr);
}

TEST_F(LocalDoorTest, GarbageIsRefused) {
  const LocalDoor::Offer offer = door_->Invite(kRank, kFirst);
  auto socket = OkValue(PacketSocket::Connect(offer.socket));
  const std::byte garbage[] = {std::byte{1}, std::byte{2}};
  ASSERT_TRUE(socket.Send(garbage, {}).ok());
  const auto answer = OkValue(socket.Receive(absl::Seconds(30)));
  const auto reply = OkValue(local::MessageFrom<local::Reply>(answer.bytes));
  EXPECT_EQ(reply.kind, local::ReplyKind::kRefused);
  EXPECT_NE(std::strstr(reply.text, "another release"), nullptr);
}

TEST_F(LocalDoorTest, AWorkerMayReturnAsTheSameIncarnation) {
  auto link = Enter();
  link.reset();
  link = Enter();
  ASSERT_NE(link, nullptr);
  const auto peer = door_->Find(kRank, kFirst);
  ASSERT_NE(peer, nullptr);
  ASSERT_TRUE(Write(*link, 1, {3, 4}).ok());
  EXPECT_EQ(FloatsOf(*peer->Gradient(1)), (std::vector<float>{3, 4}));
}

TEST_F(LocalDoorTest, ANewIncarnationReplacesTheOld) {
  const auto old_link = Enter();
  const auto old_peer = door_->Find(kRank, kFirst);
  const auto new_link = Enter(kSecond);
  EXPECT_EQ(door_->Find(kRank, kFirst), nullptr);
  EXPECT_NE(door_->Find(kRank, kSecond), nullptr);
  EXPECT_FALSE(old_peer->Share(kPush, NewWeights(1)).has_value());
}

TEST_F(LocalDoorTest, ThereIsNoArenaBeforeTheModel) {
  registered_ = false;
  const auto link = Connect(door_->Invite(kRank, kFirst));
  EXPECT_TRUE(absl::IsPermissionDenied(link.status())) << link.status();
}

TEST_F(LocalDoorTest, ArenasHaveALimit) {
  OpenDoor(LayOutArena(partitions_).size_bytes);
  const auto first = Enter();
  const auto second = Connect(door_->Invite(Rank(2), kSecond));
  EXPECT_TRUE(absl::IsPermissionDenied(second.status())) << second.status();
  const auto again = Connect(door_->Invite(kRank, kFirst));
  EXPECT_TRUE(again.ok()) << again.status();
}

TEST_F(LocalDoorTest, MessagesAreAnswered) {
  const auto link = Enter();
  for (int i = 0; i < 1000; ++i) {
    const std::string text = absl::StrCat("message ", i);
    ASSERT_TRUE(link->SendMessage(text, Ok).ok());
    ASSERT_EQ(Answer(*link), text);
  }
  EXPECT_EQ(service_->messages, 1000);
}

TEST_F(LocalDoorTest, EachWorkerHasItsOwnMessages) {
  const auto first = Enter();
  const auto first_service = service_;
  const auto second = OkValue(Connect(door_->Invite(Rank(2), kFirst)));
  ASSERT_TRUE(second->SendMessage("of the second", Ok).ok());
  EXPECT_EQ(Answer(*second), "of the second");
  EXPECT_EQ(first_service->messages, 0);
  const auto none = OkValue(first->ReceiveMessage());
  EXPECT_FALSE(none.has_value());
}

TEST_F(LocalDoorTest, AWorkerThatDoesNotReadGetsNoFurtherMessages) {
  const auto link = Enter();
  const auto peer = door_->Find(kRank, kFirst);
  const std::string text(100, 'x');
  EXPECT_TRUE(peer->Send(text).ok());
  EXPECT_TRUE(peer->Send(text).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(peer->Send(text)));
  EXPECT_EQ(Answer(*link), text);
  EXPECT_TRUE(peer->Send(text).ok());
}

TEST_F(LocalDoorTest, TheServiceLearnsThatItsWorkerIsGone) {
  auto link = Enter();
  const auto service = service_;
  link.reset();
  while (service->gone == 0) std::this_thread::yield();
  // And that a newer one has come.
  const auto old_link = Enter();
  const auto old_service = service_;
  (void)door_->Invite(kRank, kSecond);
  EXPECT_EQ(old_service->gone, 1);
  ASSERT_TRUE(old_link->SendMessage("too late", Ok).ok());
  const auto new_link = Enter(kSecond);
  ASSERT_TRUE(new_link->SendMessage("in time", Ok).ok());
  EXPECT_EQ(Answer(*new_link), "in time");
  EXPECT_EQ(old_service->messages, 0);
}

TEST_F(LocalDoorTest, TheServerMayEndFirst) {
  const auto link = Enter();
  const auto peer = door_->Find(kRank, kFirst);
  ASSERT_TRUE(Write(*link, 1, {3, 4}).ok());
  const absl::StatusOr<ByteRope> gradient = peer->Gradient(1);
  door_.reset();
  EXPECT_EQ(FloatsOf(*gradient), (std::vector<float>{3, 4}));
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
}

TEST_F(LocalDoorTest, NothingLeaks) {
  { const auto link = Enter(); }
  AwaitGone();
  const int before = OpenFiles();
  for (int i = 0; i < 20; ++i) {
    auto link = Enter();
    link.reset();
    AwaitGone();
  }
  EXPECT_EQ(OpenFiles(), before);
}

TEST_F(LocalDoorTest, WithoutAFolderTheSocketHasNoPath) {
  door_.reset();
  auto door = OkValue(LocalDoor::Open(
      {.weights = files_,
       .needs = [this] { return LocalNeeds{.partitions = partitions_}; }},
      clock_));
  const auto link = OkValue(Connect(door->Invite(kRank, kFirst)));
  EXPECT_EQ(door->socket().front(), '@');
  EXPECT_NE(door->Find(kRank, kFirst), nullptr);
}

TEST_F(LocalDoorTest, RemovesTheSocketsOfKilledServersOnly) {
  const std::string left = dir_.File("cohort-socket-0123");
  {
    auto listener = OkValue(PacketListener::Open(left));
    // A killed process leaves its socket behind.
    ASSERT_EQ(link(left.c_str(), dir_.File("kept").c_str()), 0);
  }
  ASSERT_EQ(rename(dir_.File("kept").c_str(), left.c_str()), 0);
  auto other = OkValue(LocalDoor::Open({.directory = dir_.path(),
                                        .weights = files_,
                                        .needs = [] { return std::nullopt; }},
                                       clock_));
  EXPECT_FALSE(std::filesystem::exists(left));
  EXPECT_TRUE(std::filesystem::exists(door_->socket()));
}

TEST_F(LocalDoorTest, AFolderThatIsNotThereIsNamed) {
  const auto door = LocalDoor::Open({.directory = "/nowhere/at/all",
                                     .weights = files_,
                                     .needs = [] { return std::nullopt; }},
                                    clock_);
  EXPECT_TRUE(absl::IsUnavailable(door.status()));
  EXPECT_NE(door.status().message().find("/nowhere/at/all"), std::string::npos);
}

TEST(BootIdTest, IsThatOfTheKernel) { EXPECT_EQ(BootId().size(), 36u); }

}  // namespace
}  // namespace cohort
