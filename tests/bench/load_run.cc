#include "tests/bench/load_run.h"

#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"
#include "server/ctl/cluster/programs.h"

namespace cohort::bench {
namespace {

double Number(absl::string_view text) {
  double number = 0;
  return absl::SimpleAtod(text, &number) ? number : 0;
}

}  // namespace

double SteadySeconds() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void LoadReport::Add(absl::string_view line) {
  const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
  const auto number = [&words](size_t i) {
    return i < words.size() ? Number(words[i]) : 0;
  };
  if (words[0] == "registered") {
    ++packs_registered;
    registered = std::max(registered, number(1));
  } else if (words[0] == "pulled") {
    pulls_begun =
        packs_pulled == 0 ? number(1) : std::min(pulls_begun, number(1));
    ++packs_pulled;
    pulls_ended = std::max(pulls_ended, number(2));
  } else if (words[0] == "begun") {
    const auto version = static_cast<int64_t>(number(1));
    const auto [at, first] = begun.try_emplace(version, number(2));
    if (!first) at->second = std::min(at->second, number(2));
    ++packs_begun[version];
  } else if (words[0] == "answers") {
    const auto [at, first] = answers.try_emplace(
        static_cast<int64_t>(number(1)), number(2), number(3));
    if (first) return;
    at->second.first = std::min(at->second.first, number(2));
    at->second.second = std::max(at->second.second, number(3));
  } else if (words[0] == "cost" && words.size() > 1) {
    LoadCost& cost = costs[std::string(words[1])];
    cost.cpu_seconds += number(2);
    cost.seconds += number(3);
    cost.count += number(4);
  } else if (words[0] == "repeated") {
    repeated += static_cast<int64_t>(number(1));
  }
}

absl::StatusOr<std::unique_ptr<LoadRun>> LoadRun::Start(Options options) {
  std::unique_ptr<LoadRun> run(new LoadRun(std::move(options)));
  const Options& chosen = run->options_;
  run->deadline_ = SteadySeconds() + absl::ToDoubleSeconds(chosen.patience);
  COHORT_ASSIGN_OR_RETURN(const std::string folder, OwnFolder());
  std::vector<std::string> command = {
      chosen.server_program.empty() ? folder + "/cohort-server"
                                    : chosen.server_program,
      "--listen=127.0.0.1:0",
      "--ops_listen=",
      "--local=tcp",
      absl::StrCat("--workers=", chosen.workers),
      absl::StrCat("--max_steps=", chosen.shape.steps()),
      "--on_worker_loss=continue",
      "--optimizer=sgd",
      "--weight_decay=0"};
  command.insert(command.end(), chosen.server_flags.begin(),
                 chosen.server_flags.end());
  run->serving_.name = "the server";
  COHORT_ASSIGN_OR_RETURN(run->serving_.child, ChildProcess::Start(command));
  run->server_ = run->serving_.child.get();
  COHORT_RETURN_IF_ERROR(
      run->WaitUntil([&run] { return !run->address_.empty(); }));
  run->before_ = run->ServerCosts();
  return run;
}

absl::Status LoadRun::AddPack(int32_t clients) {
  COHORT_ASSIGN_OR_RETURN(const std::string folder, OwnFolder());
  const LoadShape& shape = options_.shape;
  packs_.push_back({.name = absl::StrCat("clients from rank ", ranks_)});
  COHORT_ASSIGN_OR_RETURN(
      packs_.back().child,
      ChildProcess::Start(
          {folder + "/cohort-load", absl::StrCat("--address=", address_),
           absl::StrCat("--server_process=", server_->pid()),
           absl::StrCat("--first_rank=", ranks_),
           absl::StrCat("--clients=", clients),
           absl::StrCat("--layers=", shape.layers),
           absl::StrCat("--channels=", shape.channels),
           absl::StrCat("--elements=", shape.elements),
           absl::StrCat("--push_steps=", shape.push_steps),
           absl::StrCat("--rendezvous_steps=", shape.rendezvous_steps),
           absl::StrCat("--repeats=", shape.repeats),
           absl::StrCat("--rest=", absl::FormatDuration(shape.rest))}));
  ranks_ += clients;
  return absl::OkStatus();
}

absl::Status LoadRun::AddPacks(int32_t processes) {
  while (ranks_ < options_.workers) {
    const int32_t left = options_.workers - ranks_;
    const int32_t share = (options_.workers + processes - 1) / processes;
    COHORT_RETURN_IF_ERROR(AddPack(std::min(left, share)));
  }
  return absl::OkStatus();
}

absl::Status LoadRun::WaitUntil(const std::function<bool()>& done) {
  while (!done()) {
    COHORT_RETURN_IF_ERROR(ReadOnce());
    if (SteadySeconds() < deadline_) continue;
    return absl::DeadlineExceededError(
        absl::StrCat("not done after ", absl::FormatDuration(options_.patience),
                     "; the server's last line: ", serving_.last_line));
  }
  return absl::OkStatus();
}

absl::Status LoadRun::WaitForStep(int64_t version, int32_t packs) {
  return WaitUntil([this, version, packs] {
    const auto at = report_.packs_begun.find(version);
    return at != report_.packs_begun.end() && at->second >= packs;
  });
}

absl::Status LoadRun::WaitForEnd() {
  return WaitUntil([this] {
    return serving_.ended &&
           std::all_of(packs_.begin(), packs_.end(),
                       [](const Process& p) { return p.ended; });
  });
}

absl::Status LoadRun::Watch(absl::Duration time) {
  const double end = SteadySeconds() + absl::ToDoubleSeconds(time);
  return WaitUntil([end] { return SteadySeconds() >= end; });
}

void LoadRun::Kill(size_t pack) {
  packs_[pack].may_fail = true;
  Signal(pack, SIGKILL);
}

void LoadRun::Signal(size_t pack, int number) {
  packs_[pack].child->Signal(number);
}

absl::Status LoadRun::ReadOnce() {
  constexpr int kPollMs = 20;
  std::vector<pollfd> outputs;
  const auto wait_for = [&outputs](const Process& process) {
    const int output = process.child->output();
    if (!process.ended && output >= 0) {
      outputs.push_back({.fd = output, .events = POLLIN, .revents = 0});
    }
  };
  wait_for(serving_);
  for (const Process& pack : packs_) wait_for(pack);
  poll(outputs.data(), outputs.size(), kPollMs);
  COHORT_RETURN_IF_ERROR(Read(serving_, [this](absl::string_view line) {
    const std::vector<absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits("listening on ", 1));
    if (parts.size() < 2 || !address_.empty()) return;
    address_ = std::string(parts[1].substr(0, parts[1].find_first_of(" ,;")));
  }));
  for (Process& pack : packs_) {
    COHORT_RETURN_IF_ERROR(
        Read(pack, [this](absl::string_view line) { report_.Add(line); }));
  }
  return absl::OkStatus();
}

absl::Status LoadRun::Read(
    Process& process, const std::function<void(absl::string_view)>& on_line) {
  if (process.ended) return absl::OkStatus();
  const auto note = [&](absl::string_view line) {
    process.last_line = std::string(line);
    on_line(line);
  };
  process.child->ReadLines(note);
  const std::optional<ProcessEnd> end = process.child->TryReap(note);
  if (!end.has_value()) return absl::OkStatus();
  process.ended = true;
  if (end->code == 0 || process.may_fail) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(process.name, " ", end->Text(), ": ", process.last_line));
}

}  // namespace cohort::bench
