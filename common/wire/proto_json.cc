#include "common/wire/proto_json.h"

#include <google/protobuf/descriptor.h>

#include <cmath>
#include <cstdint>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace cohort {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using Json = nlohmann::json;

constexpr uint64_t kExactMax = uint64_t{1} << 53;

Json Integer(int64_t value) {
  const uint64_t size = value < 0 ? 0 - static_cast<uint64_t>(value)
                                  : static_cast<uint64_t>(value);
  return size > kExactMax ? Json(absl::StrCat(value)) : Json(value);
}

Json Unsigned(uint64_t value) {
  return value > kExactMax ? Json(absl::StrCat(value)) : Json(value);
}

Json Number(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

// A float in as few digits as name it, not in those of the nearest double.
Json Number(float value) {
  return std::isfinite(value) ? Json::parse(absl::StrCat(value))
                              : Json(nullptr);
}

Json Text(const FieldDescriptor& field, const std::string& value) {
  return field.type() == FieldDescriptor::TYPE_BYTES
             ? absl::BytesToHexString(value)
             : value;
}

// The value of a field; of the element `at` if the field is repeated.
Json Value(const Message& message, const FieldDescriptor& field, int at) {
  const Reflection& of = *message.GetReflection();
  const bool list = field.is_repeated();
#define COHORT_VALUE_OF(TYPE)                       \
  (list ? of.GetRepeated##TYPE(message, &field, at) \
        : of.Get##TYPE(message, &field))
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return COHORT_VALUE_OF(Int32);
    case FieldDescriptor::CPPTYPE_INT64:
      return Integer(COHORT_VALUE_OF(Int64));
    case FieldDescriptor::CPPTYPE_UINT32:
      return COHORT_VALUE_OF(UInt32);
    case FieldDescriptor::CPPTYPE_UINT64:
      return Unsigned(COHORT_VALUE_OF(UInt64));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return Number(COHORT_VALUE_OF(Double));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return Number(COHORT_VALUE_OF(Float));
    case FieldDescriptor::CPPTYPE_BOOL:
      return COHORT_VALUE_OF(Bool);
    case FieldDescriptor::CPPTYPE_ENUM:
      return COHORT_VALUE_OF(Enum)->name();
    case FieldDescriptor::CPPTYPE_STRING:
      return Text(field, COHORT_VALUE_OF(String));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ProtoJson(COHORT_VALUE_OF(Message));
  }
#undef COHORT_VALUE_OF
  return nullptr;
}

Json Map(const Message& message, const FieldDescriptor& field) {
  Json map = Json::object();
  for (int i = 0; i < message.GetReflection()->FieldSize(message, &field);
       ++i) {
    const Message& entry =
        message.GetReflection()->GetRepeatedMessage(message, &field, i);
    const Json key = Value(entry, *field.message_type()->map_key(), 0);
    map[key.is_string() ? key.get<std::string>() : key.dump()] =
        Value(entry, *field.message_type()->map_value(), 0);
  }
  return map;
}

Json List(const Message& message, const FieldDescriptor& field) {
  Json list = Json::array();
  for (int i = 0; i < message.GetReflection()->FieldSize(message, &field);
       ++i) {
    list.push_back(Value(message, field, i));
  }
  return list;
}

}  // namespace

Json ProtoJson(const Message& message) {
  Json json = Json::object();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(i);
    Json& value = json[field.name()];
    if (field.is_map()) {
      value = Map(message, field);
    } else if (field.is_repeated()) {
      value = List(message, field);
    } else if (!field.has_presence() ||
               message.GetReflection()->HasField(message, &field)) {
      value = Value(message, field, 0);
    }
  }
  return json;
}

}  // namespace cohort
