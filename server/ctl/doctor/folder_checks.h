#pragma once

#include <cstdint>
#include <string>

#include "server/ctl/doctor/check.h"

namespace cohort {

// Checks whether a folder can be written or created and whether its disk has
// room, by writing a file there and removing it. `flag` is the server's flag
// for it.
Check CheckFolder(const std::string& flag, const std::string& folder);
// The same check for known disk space.
Check CheckRoom(const std::string& flag, const std::string& folder,
                uint64_t free_bytes);

}  // namespace cohort
