#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "cohort/v1/admin.pb.h"
#include "server/ctl/admin_client.h"
#include "server/ctl/connection_text.h"

namespace cohort {

// A server's state, read at about the same moment.
struct Overview {
  std::string server;
  v1::Status status;
  ConnectionView connection;
};

absl::StatusOr<Overview> LookAt(AdminClient& server);
// Several lines, including the workers, and the shards if there are several.
std::string OverviewText(const Overview& overview, bool bold);
// One line, for a log.
std::string OverviewLine(const Overview& overview);
// One line: v1::Status as JSON, with `server` and `connection`.
std::string OverviewJson(const Overview& overview);

std::string WorkersText(const v1::Status& status, bool bold);
std::string ShardsText(const v1::Status& status, bool bold);
std::string WorkersJson(const v1::Status& status);

}  // namespace cohort
