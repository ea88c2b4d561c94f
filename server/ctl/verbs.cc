#include "server/ctl/verb.h"

namespace cohort {

absl::Span<const FlagSpec> CommonFlags() {
  static constexpr FlagSpec kFlags[] = {
      {.name = "server",
       .value = "HOST:PORT",
       .help = "address of the server (default 127.0.0.1:7070)"},
      {.name = "json",
       .value = "",
       .help = "print the result as JSON, in one line"},
      {.name = "timeout",
       .value = "T",
       .help = "longest wait, for an answer and for a change (default 1m)"},
      {.name = "help", .value = "", .help = "explain the verb"},
      {.name = "version", .value = "", .help = "tell version and commit"}};
  return kFlags;
}

// A table, not logic.
// NOLINTNEXTLINE(readability-function-size)
absl::Span<const Verb> Verbs() {
  // Built once, never changed; leaked, so that no order of destruction
  // matters.
  static const std::vector<Verb>& verbs = *new std::vector<Verb>{
      {.name = "status",
       .summary = "state, progress, policy and workers of the run",
       .flags = {{.name = "watch",
                  .value = "",
                  .help = "show it again and again until the run is over"},
                 {.name = "interval",
                  .value = "T",
                  .help = "time between two looks of --watch (default 2s)"}},
       .examples = {"cohortctl status", "cohortctl status --watch"},
       .run = &RunStatus},
      {.name = "health",
       .summary = "asks an operations port whether its process is ready",
       .flags = {{.name = "ops",
                  .value = "HOST:PORT",
                  .help = "operations port of a server or worker (default "
                          "127.0.0.1:7071)"},
                 {.name = "live",
                  .value = "",
                  .help = "ask only whether it is alive"}},
       .examples = {"cohortctl health",
                    "cohortctl health --ops=127.0.0.1:7072 --timeout=3s"},
       .run = &RunHealth},
      {.name = "policy get",
       .summary = "the settings in force, and the change under way",
       .examples = {"cohortctl policy get", "cohortctl policy get --json"},
       .run = &RunPolicyGet},
      {.name = "policy set",
       .summary = "changes settings while the run goes on",
       .flags = {{.name = "dry_run",
                  .value = "",
                  .help = "check and tell, change nothing"},
                 {.name = "nowait",
                  .value = "",
                  .help = "do not wait until the change is in force"}},
       .takes_settings = true,
       .examples = {"cohortctl policy set --aggregation=async "
                    "--normalization=local",
                    "cohortctl policy set --learning_rate=0.01 --dry_run"},
       .run = &RunPolicySet},
      {.name = "policy history",
       .summary = "every change of settings, and at which version",
       .examples = {"cohortctl policy history"},
       .run = &RunPolicyHistory},
      {.name = "workers list",
       .summary = "who holds which rank, and when it was last heard from",
       .examples = {"cohortctl workers list"},
       .run = &RunWorkersList},
      {.name = "workers evict",
       .summary = "ends the life that holds a rank, as if it had died",
       .flags = {{.name = "rank", .value = "N", .help = "whose"},
                 {.name = "reason",
                  .value = "TEXT",
                  .help = "goes into the server's log"}},
       .examples = {"cohortctl workers evict --rank=1"},
       .run = &RunWorkersEvict},
      {.name = "run drain",
       .summary = "ends the run after the current step, with its results",
       .flags = {{.name = "reason",
                  .value = "TEXT",
                  .help = "goes into the server's log"}},
       .examples = {"cohortctl run drain --reason='good enough'"},
       .run = &RunDrain},
      {.name = "checkpoint save",
       .summary = "writes a checkpoint now, and waits until it is safe",
       .examples = {"cohortctl checkpoint save"},
       .run = &RunCheckpointSave},
      {.name = "statistics collect",
       .summary = "collects the moving statistics `after` over fixed weights",
       .examples = {"cohortctl statistics collect"},
       .run = &RunStatisticsCollect},
      {.name = "export",
       .summary = "writes model.safetensors into the server's results_dir",
       .examples = {"cohortctl export"},
       .run = &RunExport},
      {.name = "log level",
       .summary = "tells or changes which lines the server logs",
       .words = "[debug|info|warning|error]",
       .examples = {"cohortctl log level", "cohortctl log level debug"},
       .run = &RunLogLevel},
      {.name = "trace merge",
       .summary = "puts the timelines of all processes on one clock",
       .words = "FILE...",
       .flags = {{.name = "out",
                  .value = "FILE",
                  .help = "gets the merged timeline (default trace.json)"}},
       .examples = {"cohortctl trace merge server.json worker0.json "
                    "worker1.json --out=run.json"},
       .run = &RunTraceMerge}};
  return verbs;
}

}  // namespace cohort
