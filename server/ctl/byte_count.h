#pragma once

#include <cstdint>
#include <string>

namespace cohort {

// A size for people, cut to tenths: "512 B", "1.2 KiB", "3.4 GiB".
std::string ByteCountText(int64_t bytes);

}  // namespace cohort
