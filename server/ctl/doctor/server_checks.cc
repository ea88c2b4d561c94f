#include "server/ctl/doctor/server_checks.h"

#include <errno.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/clock.h"
#include "common/listen_address.h"
#include "common/ops/client_connection.h"
#include "common/ops/page_client.h"
#include "server/ctl/admin_client.h"
#include "server/ctl/status_words.h"
#include "server/ctl/table.h"

namespace cohort {
namespace {

constexpr int kHttpStatusOk = 200;
// The default of --ops_listen.
constexpr absl::string_view kOpsPort = "7071";
// With a larger difference, timelines and logs of several machines cannot be
// read together.
constexpr absl::Duration kClockWarning = absl::Seconds(1);
constexpr absl::Duration kClockFailure = absl::Minutes(5);
// Certificates that are renewed by a program have hours left at least; those
// that are renewed by a person need days.
constexpr absl::Duration kEndWarning = absl::Hours(7 * 24);

// "0.1.0 (commit 0f79f3a0b1c2)" of "cohort (Python) 0.1.0 (commit ...)": a
// program may say its name first.
std::string WithoutName(const std::string& build) {
  const size_t digit = build.find_first_of("0123456789");
  const size_t commit = build.find("(commit");
  return digit == std::string::npos || digit > commit ? build
                                                      : build.substr(digit);
}

// For files that the server tries to write again.
constexpr char kMakeRoom[] =
    "make room on that disk, or correct the folder's permissions; the server "
    "need not be restarted, and cohortctl checkpoint save tries at once";

// The release of a build: "0.1.0" for "0.1.0 (commit 0f79f3a0b1c2)".
absl::string_view ReleaseOf(absl::string_view build) {
  return build.substr(0, build.find(' '));
}

}  // namespace

Check CheckAddress(const std::string& address, absl::Duration timeout) {
  const absl::Status opened =
      ClientConnection("--server", address, SteadyClock().Now() + timeout)
          .Open();
  if (opened.ok()) {
    return Check::Ok("address", absl::StrCat(address, " takes connections"));
  }
  if (absl::IsInvalidArgument(opened)) {
    return Check::Failed("address", std::string(opened.message()),
                         "pass --server=HOST:PORT, such as 127.0.0.1:7070");
  }
  std::string fix =
      "look at this machine's network; if a name is not known, check its "
      "spelling and this machine's name service";
  if (IsUnixAddress(address)) {
    fix =
        "start cohort-server with that --listen, or pass the address that "
        "it printed as --server; only processes of its user reach the "
        "socket, and containers only if they mount its folder under the "
        "same path";
  } else if (absl::IsDeadlineExceeded(opened)) {
    fix = absl::StrCat(
        "a firewall or a network policy may drop it: open the way to ",
        address);
  } else if (absl::EndsWith(opened.message(), strerror(ECONNREFUSED))) {
    fix =
        "nothing listens there: start cohort-server, or pass the address "
        "that it printed as --server; one that listens on 127.0.0.1 is "
        "reached from its own machine only (its --listen)";
  }
  return Check::Failed("address",
                       absl::StrCat("no connection: ", opened.message()), fix);
}

Check CheckServer(const absl::Status& answer, const v1::Status& status) {
  if (answer.ok()) {
    return Check::Ok("server", absl::StrCat("run ", RunText(status), ": ",
                                            Printable(status.state())));
  }
  const absl::string_view text = answer.message();
  const size_t end = text.find('\n');
  const std::string first(text.substr(0, end));
  // An answer, or a handshake, that failed is one of a Cohort server. So is one
  // that names another address to ask.
  const bool elsewhere = absl::StrContains(text, kPassThatAddress);
  if (!absl::StrContains(first, ": cannot be reached (") &&
      (!absl::IsUnimplemented(answer) || elsewhere)) {
    const std::string next(
        end == absl::string_view::npos ? "" : text.substr(end + 1));
    return Check::Failed("server", first,
                         next.empty()
                             ? "give the certificate or token of a client that "
                               "may do this, or correct its file"
                             : next);
  }
  return Check::Failed(
      "server", first,
      "something else than a Cohort server listens there: the live page "
      "--server names another port; the server prints both at its start");
}

Check CheckConnection(const ConnectionView& connection,
                      const std::string& address, absl::Time now) {
  const std::string text = ConnectionText(connection, now);
  if (!connection.encrypted) {
    const absl::StatusOr<ListenAddress> parsed =
        ParseListenAddress("--server", address);
    if (parsed.ok() && parsed->loopback()) {
      return Check::Ok("connection", absl::StrCat(text, ", on this machine"));
    }
    return Check::Warning(
        "connection",
        absl::StrCat(text, ": any client that reaches ", address,
                     " may read the weights and stop the run"),
        "give server, workers and cohortctl certificates: cohortctl "
        "certs init");
  }
  if (connection.first_end() - now >= kEndWarning) {
    return Check::Ok("connection", text);
  }
  return Check::Warning(
      "connection", text,
      "renew that certificate in its file, with cohortctl certs issue or "
      "your authority; it is read again within seconds");
}

Check CheckRecord(const v1::Status& status) {
  return Check::Failed(
      "audit log",
      absl::StrCat("changes are refused: ", Printable(status.audit_problem())),
      kMakeRoom);
}

Check CheckCheckpoints(const v1::Status& status) {
  return Check::Failed("checkpoints", Printable(status.checkpoint_problem()),
                       kMakeRoom);
}

Check CheckData(const v1::Status& status) {
  return Check::Warning(
      "data", Printable(status.data_problem()),
      "seed each worker by its rank before its data is shuffled, or give "
      "each its own part of the data");
}

Check CheckShards(const v1::Status& status) {
  const std::string missing = MissingShardsText(status);
  if (missing.empty()) {
    return Check::Ok(
        "shards", absl::StrCat("all ", status.shards_size(), " are connected"));
  }
  // A run that is over may not need them any more.
  const auto make = status.ended() ? &Check::Warning : &Check::Failed;
  return make("shards", absl::StrCat(ShardsLine(status), ": ", missing),
              kMissingShardHint);
}

Check CheckRun(const v1::Status& status) {
  const std::string state = Printable(status.state());
  if (status.ended()) {
    return status.samples() >= status.samples_total()
               ? Check::Ok("run", "it is done")
               : Check::Warning(
                     "run",
                     absl::StrCat("it ended before its last image: ", state),
                     "to continue it, start the server again with --resume");
  }
  if (status.phase() != "waiting") return Check::Ok("run", "it makes progress");
  // CheckShards says what to do.
  if (!MissingShardsText(status).empty()) {
    return Check::Failed("run", absl::StrCat("it makes no progress: ", state));
  }
  const auto is_away = [&status](int32_t rank) {
    return std::any_of(status.workers().begin(), status.workers().end(),
                       [rank](const v1::WorkerStatus& worker) {
                         return worker.rank() == rank &&
                                worker.state() != "live";
                       });
  };
  const bool too_few = status.workers_min() > 0 && status.waited_for().empty();
  const bool any_away =
      too_few || std::any_of(status.waited_for().begin(),
                             status.waited_for().end(), is_away);
  if (status.workers_min() > 0 && any_away) {
    return Check::Failed(
        "run", absl::StrCat("it makes no progress: ", state),
        absl::StrCat("to continue with fewer workers, lower MIN: cohortctl "
                     "policy set --workers=MIN:",
                     status.workers_expected()));
  }
  return any_away
             ? Check::Failed(
                   "run", absl::StrCat("it makes no progress: ", state),
                   "to continue without the workers that are away, once "
                   "training has begun: cohortctl policy set "
                   "--on_worker_loss=continue")
             : Check::Warning(
                   "run", absl::StrCat("it is held up: ", state),
                   "look at that worker's log and machine; cohortctl workers "
                   "evict has another one take its place");
}

Check CheckVersions(absl::string_view own, const v1::Status& status) {
  // By build: the processes that have it.
  std::map<std::string, std::vector<std::string>> others;
  const auto add = [&](const std::string& build, const std::string& who) {
    // Another program need not state any.
    const std::string said =
        build.empty() ? "of no known build" : WithoutName(Printable(build));
    if (said != own) others[said].push_back(who);
  };
  add(status.build(), "the server");
  for (const v1::WorkerStatus& worker : status.workers()) {
    if (worker.state() == "vacant") continue;
    add(worker.build(), absl::StrCat("worker ", worker.rank()));
  }
  if (others.empty()) {
    return Check::Ok("versions", absl::StrCat("all are ", own));
  }
  std::string found = absl::StrCat("cohortctl is ", own);
  bool release_differs = false;
  for (const auto& [build, who] : others) {
    absl::StrAppend(&found, "; ", absl::StrJoin(who, ", "),
                    who.size() == 1 ? " is " : " are ", build);
    release_differs |= ReleaseOf(build) != ReleaseOf(own);
  }
  const auto make = release_differs ? &Check::Failed : &Check::Warning;
  return make("versions", found,
              "run one build everywhere: what another release does not know it "
              "passes over, and another build need not train the same to the "
              "bit");
}

Check CheckClock(const v1::Status& status, absl::Time asked,
                 absl::Time answered) {
  if (status.server_unix_us() == 0) {
    return Check::Skipped("clock", "the server does not tell it");
  }
  const absl::Time server = absl::FromUnixMicros(status.server_unix_us());
  // How far the server's time lies outside of the call.
  absl::Duration off;
  if (server < asked) off = asked - server;
  if (server > answered) off = server - answered;
  if (off < kClockWarning) {
    return Check::Ok("clock",
                     absl::StrCat("differs by less than ",
                                  SecondsText(off + (answered - asked) +
                                              absl::Milliseconds(100))));
  }
  const auto make = off < kClockFailure ? &Check::Warning : &Check::Failed;
  return make("clock",
              absl::StrCat("the server's is ", HumanDuration(off), " ",
                           server < asked ? "behind" : "ahead"),
              "have both machines set theirs: `timedatectl set-ntp true`; logs "
              "and certificates go by it");
}

Check CheckWorkers(const v1::Status& status) {
  // Those that were there try again by themselves.
  if (!MissingShardsText(status).empty()) {
    return Check::Skipped(
        "workers",
        "the server takes none before all data shards are connected");
  }
  // An elastic cohort may have vacant ranks.
  if (status.workers_min() > 0) {
    const auto here = std::count_if(
        status.workers().begin(), status.workers().end(),
        [](const v1::WorkerStatus& worker) {
          return worker.state() == "live" || worker.state() == "finished";
        });
    const std::string found =
        absl::StrCat(here, " are there, ", status.workers_min(), " to ",
                     status.workers_expected(), " may be");
    return here >= status.workers_min()
               ? Check::Ok("workers", found)
               : Check::Warning(
                     "workers", found,
                     "start more: cohort-worker --server=ADDRESS; the logs of "
                     "those before tell why they ended");
  }
  std::vector<std::string> away;
  for (const v1::WorkerStatus& worker : status.workers()) {
    if (worker.state() == "live" || worker.state() == "finished") continue;
    away.push_back(absl::StrCat(worker.rank()));
  }
  if (away.empty()) {
    return Check::Ok("workers",
                     absl::StrCat("all ", status.workers_size(), " are there"));
  }
  return Check::Warning(
      "workers",
      absl::StrCat(away.size(), " of ", status.workers_size(),
                   " are away: rank ", absl::StrJoin(away, ", ")),
      "start them: cohort-worker --server=ADDRESS --rank=N; their own "
      "logs tell why they ended");
}

OpsAddress OpsAddressOf(const std::optional<std::string>& named,
                        const std::string& server, const v1::Status& status) {
  if (named.has_value()) {
    return {.address = *named, .from = OpsAddress::From::kFlag};
  }
  // The server at a Unix socket is on this machine.
  const std::string host =
      IsUnixAddress(server) ? "127.0.0.1" : server.substr(0, server.rfind(':'));
  if (!status.has_ops_address()) {
    return {.address = absl::StrCat(host, ":", kOpsPort),
            .from = OpsAddress::From::kGuess};
  }
  const std::string& told = status.ops_address();
  if (told.empty()) return {.from = OpsAddress::From::kServer};
  // If it listens everywhere, use the host under which the server was reached.
  const size_t colon = told.rfind(':');
  const std::string own = told.substr(0, colon);
  const bool everywhere = own == "0.0.0.0" || own == "[::]" || own == "*";
  return {.address = everywhere ? absl::StrCat(host, told.substr(colon)) : told,
          .from = OpsAddress::From::kServer};
}

Check CheckOpsPort(const OpsAddress& ops, const TlsFiles& tls,
                   absl::Duration timeout) {
  const std::string& address = ops.address;
  if (address.empty()) {
    return Check::Skipped("ops port",
                          "the server has none: its --ops_listen is empty");
  }
  const absl::StatusOr<Page> page = FetchPage(
      {.address = address, .path = "/readyz", .timeout = timeout, .tls = tls});
  if (!page.ok()) {
    switch (ops.from) {
      case OpsAddress::From::kFlag:
        return Check::Failed(
            "ops port", absl::StrCat(address, " does not answer"),
            "pass as --ops what the process was given as --ops_listen");
      case OpsAddress::From::kServer:
        return Check::Warning(
            "ops port",
            absl::StrCat(address,
                         ", which the server names, does not answer "
                         "here"),
            "one that listens on 127.0.0.1 is reached from its own "
            "machine only; from elsewhere pass --ops=HOST:PORT");
      case OpsAddress::From::kGuess:
        break;
    }
    return Check::Skipped(
        "ops port",
        absl::StrCat(address,
                     ", a guess, does not answer: the server is too old "
                     "to name its own (--ops=HOST:PORT)"));
  }
  const std::string said =
      Printable(absl::StripAsciiWhitespace(page->body).substr(0, 200));
  if (page->status == kHttpStatusOk) {
    return Check::Ok("ops port", absl::StrCat(address, ": ", said));
  }
  return Check::Warning(
      "ops port", absl::StrCat(address, " is not ready: ", said),
      "wait, if it is starting or stopping; otherwise that is what is "
      "wrong with it");
}

}  // namespace cohort
