#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace cohort {

// `json` in one line, with its end. Bytes that are not UTF-8 are replaced,
// because texts come from other machines.
inline std::string JsonLine(const nlohmann::ordered_json& json) {
  using Handler = nlohmann::ordered_json::error_handler_t;
  return json.dump(-1, ' ', false, Handler::replace) + "\n";
}

}  // namespace cohort
