#pragma once

#include <sys/types.h>

#include <deque>
#include <fstream>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/ctl/cluster/local_cluster.h"
#include "server/ctl/verb.h"

namespace cohort {

// A line of a log in JSON as its message, behind the level if that is above
// info; any other line as it is.
std::string LogLineText(absl::string_view line);

// What `cohortctl run` shows of its processes and of what it does itself.
//
// Lines of the processes go to io.out, each behind its process's name; what
// `run` has to say goes to io.err. With a folder for logs, each process's lines
// go into a file of its own as they were written, and only the server's are
// shown, without a name. With JSON everything goes to io.out, an object a line.
class RunScreen {
 public:
  // `io` must outlive it. An empty `log_dir`: no logs.
  RunScreen(CtlIo& io, bool json, std::string log_dir, int32_t workers);

  // Makes the folder. Errors: FailedPrecondition, it cannot be written.
  absl::Status OpenLogs();

  void ShowLine(const ClusterProcess& process, absl::string_view line);
  void ShowStart(const ClusterProcess& process, pid_t pid);
  // Says how a process ended, and what became of that; for one whose lines
  // are not shown, the last of them too.
  void ShowEnd(const ClusterProcess& process, const ProcessEnd& end,
               absl::string_view consequence);
  // To JSON's readers alone: the others have the process's own word for it.
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
  // Of the longest name of a process.
  const size_t name_width_;
  std::map<ClusterProcess, std::ofstream> logs_;
  std::map<ClusterProcess, std::deque<std::string>> last_lines_;
};

}  // namespace cohort
