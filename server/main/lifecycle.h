#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "server/core/events/effects.h"

namespace cohort {

// The decisions of a server between its start and its end: what its main thread
// does next, and what a stop still has to write and tell. A state machine
// without threads, clocks or files; `Server` guards it and carries out, and the
// simulator runs it too.
class ServerLifecycle {
 public:
  struct Options {
    // There are data shards, which have to attach before workers are let in.
    bool data_shards = false;
    // If false, a server whose run is done stays until it is stopped.
    bool exit_when_done = true;
  };

  // What the main thread does next.
  enum class Task {
    // It waits for the next event.
    kWait,
    kStoreMilestone,
    // Saves a checkpoint, and then calls LeavingShardSaved.
    kSaveForLeaving,
    // The run is over, and clients may still look at it: it stays until they
    // have seen the end or, without `exit_when_done`, until it is stopped.
    kStay,
    kStop,
  };

  // What a stop writes once nothing can change the run any more.
  enum class Ending {
    // It is written.
    kNothing,
    // Results, the last checkpoint and the summary. The results of a run that
    // is over are written before; see EndsWithResults.
    kConclude,
    // The last checkpoint and the summary: the data shards were never there,
    // and all partitions of the restored version are here.
    kConcludeWithoutShards,
    // The partitions of this version are gone, or were never here.
    kFinishRecorder,
  };

  explicit ServerLifecycle(const Options& options) : options_(options) {}

  // ---- events
  // All data shards are there.
  void Attached() { attached_ = true; }
  // An operator has drained the run before they were.
  void OverBeforeStart() { over_before_start_ = true; }
  void RequestStop() { stop_requested_ = true; }
  // The run waits until its state is stored.
  void MilestoneReached() { milestone_ = true; }
  void RunEnded(RunOutcome outcome);
  // A data shard stops once its connection is over. Returns true if it can be
  // released at once: nothing was done since the checkpoint that the run
  // continues from.
  bool ShardLeaving(int32_t shard);
  // The checkpoint before the loss of the leaving data shard was written, or
  // could not be. `why` is the reason of the loss. Returns whether the data
  // shard is given up.
  bool LeavingShardSaved(absl::string_view why);
  // The run continues in another server.
  void ShardLost(absl::string_view why);
  // Everything that the end of the run leaves is written.
  void Concluded() { concluded_ = true; }
  // Returns false if another thread has begun the stop. The events of the run
  // have no effect from now on.
  bool BeginStop();
  // The files are written; an error means that results or the last checkpoint
  // are not.
  void FilesWritten(bool all) { files_written_ = all; }
  void Stopped() { stopped_ = true; }

  // ---- the main thread
  // Gives each task once, except kWait and kStop.
  Task TakeTask();
  // It need not stay any longer.
  bool LeavingRequested() const { return stop_requested_ || stopping_; }

  // ---- queries
  bool stop_requested() const { return stop_requested_; }
  bool stopped() const { return stopped_; }
  bool over_before_start() const { return over_before_start_; }
  // 0: none is leaving.
  int32_t leaving_shard() const { return leaving_shard_; }
  bool shard_lost() const { return !lost_.empty(); }
  // It no longer waits for data shards.
  bool GivesUpShards() const { return over_before_start_ || stop_requested_; }

  // ---- a stop; after BeginStop
  // A stop begins with the results of a run that has ended.
  bool EndsWithResults() const { return outcome_.has_value() && !concluded_; }
  // Its workers are waited for, until they have left.
  bool AwaitsLeavers() const { return outcome_.has_value(); }
  Ending ending() const;
  // Why the run continues in another server; empty if it does not. An error of
  // the files counts if a data shard is lost: the last steps are repeated.
  std::string ContinuesBecause() const {
    return elsewhere_ || !files_written_ ? lost_ : "";
  }
  // Data shards are notified that the run is over; otherwise their connections
  // are closed only.
  bool EndsShards() const {
    return outcome_.has_value() && ContinuesBecause().empty();
  }

 private:
  bool MissesShards() const { return options_.data_shards && !attached_; }

  const Options options_;
  bool attached_ = false;
  bool over_before_start_ = false;
  bool stop_requested_ = false;
  bool milestone_ = false;
  int32_t leaving_shard_ = 0;
  // Why a data shard was lost; empty if none was.
  std::string lost_;
  std::optional<RunOutcome> outcome_;
  bool stayed_ = false;
  bool concluded_ = false;
  bool stopping_ = false;
  // Known when the stop begins: another server continues the run.
  bool elsewhere_ = false;
  bool files_written_ = true;
  bool stopped_ = false;
};

}  // namespace cohort
