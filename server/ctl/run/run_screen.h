#pragma once

#include <sys/types.h>

#include <deque>
#include <fstream>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/cli/progress_line.h"
#include "server/ctl/cluster/local_cluster.h"
#include "server/ctl/verb.h"

namespace cohort {

// The message of a JSON log line, after its level if that is above info; any
// other line unchanged.
std::string LogLineText(absl::string_view line);

// The output of `cohortctl run`: lines of its processes and its own messages.
//
// Lines of the processes go to io.out, each prefixed with its process's name;
// messages of `run` go to io.err. With a folder for logs, each process's lines
// go unchanged into a separate file, and only the server's are shown,
// without a prefix. On a terminal the server's progress is one line, which is
// rewritten. With JSON everything goes to io.out, one object a line.
class RunScreen {
 public:
  // `io` must outlive it. If `log_dir` is empty, no logs are written.
  RunScreen(CtlIo& io, bool json, std::string log_dir, int32_t workers);
  ~RunScreen() { progress_.Clear(); }

  // Creates the folder. Errors: FailedPrecondition: it cannot be written.
  absl::Status OpenLogs();

  void ShowLine(const ClusterProcess& process, absl::string_view line);
  void ShowStart(const ClusterProcess& process, pid_t pid);
  // Reports how a process ended and the consequence. If its lines are not
  // shown, also prints the last of them.
  void ShowEnd(const ClusterProcess& process, const ProcessEnd& end,
               absl::string_view consequence);
  // Reports the end in JSON only; otherwise the process's own lines show it.
  void RecordEnd(const ClusterProcess& process, const ProcessEnd& end);
  void Say(absl::string_view text);

 private:
  bool shown(const ClusterProcess& process) const {
    return log_dir_.empty() || process.is_server();
  }
  std::string LogPath(const ClusterProcess& process) const;
  std::string Prefix(const ClusterProcess& process) const;

  CtlIo& io_;
  const bool json_;
  const std::string log_dir_;
  // Length of the longest process name.
  const size_t name_width_;
  ProgressLine progress_;
  std::map<ClusterProcess, std::ofstream> logs_;
  std::map<ClusterProcess, std::deque<std::string>> last_lines_;
};

}  // namespace cohort
