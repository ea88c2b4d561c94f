#include "common/formats/trace_file.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/formats/file_system.h"
#include "common/status_macros.h"
#include "common/thread_name.h"

namespace cohort {
namespace {

using Json = nlohmann::ordered_json;

constexpr absl::Duration kWriteInterval = absl::Milliseconds(100);
// Numbers of tracks that are not threads: above any thread's number, and small
// enough for viewers that hold them in 32 bits.
constexpr int64_t kTracksBegin = int64_t{1} << 30;

int64_t ThreadNumber() {
  thread_local const int64_t kNumber = syscall(SYS_gettid);
  return kNumber;
}

std::string Text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string Metadata(absl::string_view name, int64_t pid, int64_t tid,
                     const Json& args) {
  return Text({{"ph", "M"},
               {"name", std::string(name)},
               {"pid", pid},
               {"tid", tid},
               {"args", args}});
}

}  // namespace

absl::StatusOr<std::unique_ptr<TraceFile>> TraceFile::Create(
    const std::string& path, const std::string& process) {
  COHORT_RETURN_IF_ERROR(CheckNoPipe(path));
  std::unique_ptr<TraceFile> trace(new TraceFile(path, process));
  trace->file_.open(path, std::ios::binary | std::ios::trunc);
  trace->file_ << "[\n" << std::flush;
  if (!trace->file_) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot write ", path, ": ", std::strerror(errno)));
  }
  trace->writer_ = std::make_unique<PeriodicTask>(
      "trace", kWriteInterval, [t = trace.get()] { t->Write(); });
  return trace;
}

TraceFile::TraceFile(const std::string& path, const std::string& process)
    : path_(path),
      process_(process),
      pid_(getpid()),
      start_(clock_.Now()),
      wall_start_(absl::Now()) {}

TraceFile::~TraceFile() {
  // The file was never opened.
  if (writer_ == nullptr) return;
  writer_.reset();
  Write();
  file_ << "\n]\n" << std::flush;
}

void TraceFile::Add(Span span) {
  bool half_full = false;
  {
    MutexLock lock(mu_);
    if (!status_.ok()) return;
    if (entries_.size() >= kSpansMax) {
      ++dropped_;
      return;
    }
    const int64_t track = TrackLocked(span.track);
    entries_.push_back({.span = std::move(span), .track = track});
    half_full = entries_.size() == kSpansMax / 2;
  }
  if (half_full) writer_->Wake();
}

int64_t TraceFile::TrackLocked(const std::string& name) {
  const int64_t thread = ThreadNumber();
  const std::string key = name.empty() ? absl::StrCat("#", thread) : name;
  const auto [at, is_new] = tracks_.try_emplace(key, thread);
  if (!is_new) return at->second;
  if (!name.empty()) {
    at->second = kTracksBegin + static_cast<int64_t>(tracks_.size());
  }
  new_tracks_.emplace_back(at->second, name.empty() ? ThreadName() : name);
  return at->second;
}

void TraceFile::SetIdentity(const std::string& run, int32_t rank) {
  MutexLock lock(mu_);
  identity_.run = run;
  identity_.rank = rank;
  identity_changed_ = true;
}

void TraceFile::SetServerClock(absl::Duration offset, absl::Duration error) {
  MutexLock lock(mu_);
  const bool known = identity_.error >= absl::ZeroDuration();
  if (known && identity_.error <= error) return;
  identity_.offset = offset;
  identity_.error = error;
  identity_changed_ = true;
}

absl::Status TraceFile::status() const {
  MutexLock lock(mu_);
  return status_;
}

void TraceFile::Write() {
  std::vector<Entry> entries;
  std::vector<std::pair<int64_t, std::string>> tracks;
  std::optional<Identity> identity;
  int64_t dropped = 0;
  {
    MutexLock lock(mu_);
    if (!status_.ok()) return;
    entries.swap(entries_);
    tracks.swap(new_tracks_);
    dropped = dropped_;
    if (std::exchange(identity_changed_, false)) identity = identity_;
  }
  if (identity.has_value()) WriteIdentity(*identity);
  for (const auto& [track, name] : tracks) {
    WriteEvent(Metadata("thread_name", pid_, track, {{"name", name}}));
  }
  for (const Entry& entry : entries) WriteEvent(SpanText(entry));
  if (dropped > dropped_told_) {
    dropped_told_ = dropped;
    WriteEvent(Text({{"ph", "C"},
                     {"name", "dropped spans"},
                     {"pid", pid_},
                     {"tid", 0},
                     {"ts", Microseconds(clock_.Now())},
                     {"args", {{"spans", dropped}}}}));
  }
  file_ << std::flush;
  if (file_) return;
  MutexLock lock(mu_);
  status_ = absl::InternalError(
      absl::StrCat("cannot write ", path_, "; nothing more is written to it"));
}

void TraceFile::WriteIdentity(const Identity& identity) {
  WriteEvent(
      Metadata("process_name", pid_, 0, {{"name", ProcessName(identity)}}));
  WriteEvent(Metadata(
      "cohort_clock", pid_, 0,
      {{"process", process_},
       {"run", identity.run},
       {"rank", identity.rank},
       {"wall_us", absl::ToUnixMicros(wall_start_)},
       {"server_offset_us", absl::ToDoubleMicroseconds(identity.offset)},
       {"server_error_us", absl::ToDoubleMicroseconds(identity.error)}}));
}

std::string TraceFile::ProcessName(const Identity& identity) const {
  if (identity.rank < 0) return process_;
  return absl::StrCat(process_, " ", identity.rank);
}

void TraceFile::WriteEvent(const std::string& event) {
  if (!std::exchange(first_, false)) file_ << ",\n";
  file_ << event;
}

double TraceFile::Microseconds(Instant at) const {
  return absl::ToDoubleMicroseconds(at - start_);
}

std::string TraceFile::SpanText(const Entry& entry) const {
  const Span& span = entry.span;
  Json facts = Json::object();
  for (const auto& [name, value] : span.facts) {
    std::visit([&facts, &key = name](const auto& v) { facts[key] = v; }, value);
  }
  return Text({{"ph", "X"},
               {"name", span.name},
               {"pid", pid_},
               {"tid", entry.track},
               {"ts", Microseconds(span.begin)},
               {"dur", absl::ToDoubleMicroseconds(span.end - span.begin)},
               {"args", facts}});
}

}  // namespace cohort
