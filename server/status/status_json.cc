#include "server/status/status_json.h"

#include <nlohmann/json.hpp>

#include "common/wire/proto_json.h"
#include "server/status/run_status.h"

namespace cohort {

std::string StatusJson(const RunFigures& figures, StatusParts parts) {
  return ProtoJson(RunStatus(figures, parts))
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace cohort
