#include <stdlib.h>

#include <algorithm>
#include <optional>
#include <ostream>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "server/ctl/json_line.h"
#include "server/ctl/status_text.h"
#include "server/ctl/verb.h"
#include "server/ctl/watch/sparkline.h"
#include "server/ctl/watch/watch_controls.h"
#include "server/ctl/watch/watch_frame.h"

namespace cohort {
namespace {

// A screen is watched; a log is read later.
constexpr absl::Duration kIntervalOnScreen = absl::Seconds(1);
constexpr absl::Duration kIntervalInLog = absl::Seconds(10);
// A server that does not answer within this time counts as away.
constexpr absl::Duration kAnswerMax = absl::Seconds(5);

// For a terminal: home; blank the rest of the line; blank what is below.
constexpr absl::string_view kHome = "\x1b[H";
constexpr absl::string_view kBlankLine = "\x1b[K\n";
constexpr absl::string_view kBlankBelow = "\x1b[J";
constexpr absl::string_view kClearScreen = "\x1b[H\x1b[2J";

// The run has completed all its work, so its server may end.
bool AtItsEnd(const v1::Status& status) {
  return status.ended() || (status.samples_total() > 0 &&
                            status.samples() >= status.samples_total());
}

bool TerminalShowsUnicode() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string lower = absl::AsciiStrToLower(value);
    return absl::StrContains(lower, "utf-8") ||
           absl::StrContains(lower, "utf8");
  }
  return false;
}

// One watch, until the run's end, Ctrl-C, or the loss of its server.
class Watch {
 public:
  Watch(Context& context, absl::Duration interval)
      : context_(context),
        io_(context.io),
        interval_(interval),
        server_(context.server.target(),
                std::min(context.timeout, kAnswerMax)) {}

  // Errors: Unavailable: the server cannot be reached, or has been away for
  //   --timeout; those of the rpcs.
  absl::Status Run() {
    for (;;) {
      const absl::Status looked = Look();
      if (looked.ok()) {
        ShowRun();
        if (last_->status.ended()) return absl::OkStatus();
      } else if (last_.has_value() && absl::IsUnavailable(looked)) {
        if (AtItsEnd(last_->status)) {
          Tell("ended",
               "the server has ended with its run: all that there was to "
               "train is trained");
          return absl::OkStatus();
        }
        COHORT_RETURN_IF_ERROR(TellLoss(looked));
      } else {
        return looked;
      }
      if (!Rest()) return absl::OkStatus();
    }
  }

 private:
  bool interactive() const {
    return io_.terminal && io_.keys != nullptr && !context_.json;
  }

  // Waits for the next look. Keys act and are shown at once. Returns false if
  // the watch is to end.
  bool Rest() {
    if (!interactive()) return io_.pause(interval_);
    const Instant end = io_.clock.Now() + interval_;
    for (;;) {
      const absl::Duration left = end - io_.clock.Now();
      std::string typed;
      if (left <= absl::ZeroDuration()) return true;
      if (!io_.keys(left, typed)) return false;
      if (typed.empty()) return true;
      for (const WatchCommand& command : controls_.Type(typed, Ranks())) {
        if (command.kind == WatchCommand::Kind::kQuit) return false;
        controls_.Tell(Act(command));
      }
      Draw(notice_);
    }
  }

  std::vector<int32_t> Ranks() const {
    std::vector<int32_t> ranks;
    for (const v1::WorkerStatus* worker :
         OrderedWorkers(last_->status, controls_.view().order, {},
                        /*late_first=*/false)) {
      ranks.push_back(worker->rank());
    }
    return ranks;
  }

  // Sends the command. Returns its outcome in words.
  std::string Act(const WatchCommand& command) {
    v1::EvictRequest request;
    request.set_run_id(last_->status.run_id());
    request.set_rank(command.rank);
    request.set_after_step(true);
    const absl::Status sent = server_.Evict(request).status();
    return sent.ok() ? absl::StrCat("drain: worker ", command.rank,
                                    " leaves after its current step")
                     : absl::StrCat("drain: ", sent.message());
  }

  absl::Status Look() {
    COHORT_ASSIGN_OR_RETURN(Overview overview, LookAt(server_));
    const v1::Status& status = overview.status;
    // A curve covers one run.
    if (last_.has_value() && last_->status.run_id() != status.run_id()) {
      losses_ = Curve();
    }
    const bool moved =
        !last_.has_value() || last_->status.version() != status.version();
    if (moved && status.has_train_loss()) losses_.Add(status.train_loss());
    if (lost_at_.has_value()) TellReturn(overview);
    last_ = std::move(overview);
    return absl::OkStatus();
  }

  void ShowRun() {
    if (context_.json) {
      io_.out << OverviewJson(*last_) << std::flush;
    } else if (io_.terminal) {
      Draw("");
    } else {
      io_.out << OverviewLine(*last_) << std::endl;
    }
  }

  // Rewrites the screen in place, so that it does not flicker.
  void Draw(const std::string& notice) {
    notice_ = notice;
    const std::string frame = WatchFrame(
        *last_, losses_, notice, interactive() ? controls_.view() : WatchView(),
        {.size = io_.screen(),
         .bold = io_.color,
         .unicode = TerminalShowsUnicode()});
    io_.out << (drawn_ ? kHome : kClearScreen)
            << absl::StrReplaceAll(frame, {{"\n", kBlankLine}}) << kBlankBelow
            << std::flush;
    drawn_ = true;
  }

  absl::Status TellLoss(const absl::Status& why) {
    const bool first = !lost_at_.has_value();
    if (first) lost_at_ = io_.clock.Now();
    const absl::Duration away = io_.clock.Now() - *lost_at_;
    if (away >= context_.timeout) return why;
    const std::string notice =
        absl::StrCat("lost the server ", SecondsText(away),
                     " ago; looking for it again, gives up in ",
                     SecondsText(context_.timeout - away));
    if (io_.terminal && !context_.json) {
      Draw(notice);
    } else if (first) {
      Tell("lost", notice);
    }
    return absl::OkStatus();
  }

  void TellReturn(const Overview& now) {
    lost_at_.reset();
    // On a screen the next frame shows it.
    if (io_.terminal && !context_.json) return;
    Tell("again", absl::StrCat(now.status.run_id() == last_->status.run_id()
                                   ? "the server is there again"
                                   : "there is another run on this server",
                               ", step ", now.status.version()));
  }

  void Tell(const char* event, const std::string& text) {
    if (context_.json) {
      io_.out << JsonLine({{"event", event},
                           {"server", server_.server()},
                           {"message", text}})
              << std::flush;
    } else {
      io_.out << text << std::endl;
    }
  }

  Context& context_;
  CtlIo& io_;
  const absl::Duration interval_;
  AdminClient server_;
  std::optional<Overview> last_;
  Curve losses_;
  std::optional<Instant> lost_at_;
  WatchControls controls_;
  // Shown in the newest frame instead of the state.
  std::string notice_;
  bool drawn_ = false;
};

absl::Status RunWatch(Context& context) {
  const bool screen = context.io.terminal || context.json;
  COHORT_ASSIGN_OR_RETURN(
      const absl::Duration interval,
      IntervalOf(context.arguments,
                 screen ? kIntervalOnScreen : kIntervalInLog));
  return Watch(context, interval).Run();
}

}  // namespace

Verb WatchVerb() {
  return {
      .name = "watch",
      .summary = "shows a live view, steered by keys, until the run is over",
      .flags = {{"interval", "T",
                 "time between updates (default 1s; 10s without a terminal)"}},
      .examples = {"cohortctl watch", "cohortctl watch --json --interval=5s"},
      .run = &RunWatch};
}

}  // namespace cohort
