#pragma once

#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>

namespace cohort {

// The message as JSON under its proto field names, sorted. Every field is
// there: defaults are printed, and absent fields and numbers that are not
// finite are null. 64-bit integers are numbers, but strings beyond 2^53, where
// readers that know only doubles would round them. Enums are their names, bytes
// are hexadecimal, and maps are objects.
nlohmann::json ProtoJson(const google::protobuf::Message& message);

}  // namespace cohort
