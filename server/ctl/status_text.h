#pragma once

#include <string>

#include "cohort/v1/admin.pb.h"
#include "server/ctl/connection_text.h"

namespace cohort {

// A server's state, read at about the same moment.
struct Overview {
  std::string server;
  v1::Status status;
  v1::GetPolicyReply policy;
  ConnectionView connection;
};

// The version at which the policy in force took effect: that of the newest
// change, or 0 if there was none.
int64_t PolicyVersion(const v1::GetPolicyReply& policy);

// Several lines, including the workers, and the shards if there are several.
std::string OverviewText(const Overview& overview, bool bold);
// One line, for a log.
std::string OverviewLine(const Overview& overview);
// One line of JSON; its fields are documented in README.md of this folder.
std::string OverviewJson(const Overview& overview);

std::string WorkersText(const v1::Status& status, bool bold);
std::string ShardsText(const v1::Status& status, bool bold);
std::string WorkersJson(const v1::Status& status);

}  // namespace cohort
