#include "common/wire/proto_json.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/dynamic_message.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>
#include <stdio.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"

namespace cohort {
namespace {

using google::protobuf::Message;
using google::protobuf::TextFormat;

// A message that has a field of every type.
constexpr char kFile[] = R"(
  name: "all.proto" syntax: "proto3"
  enum_type { name: "Color" value { name: "RED" number: 0 }
              value { name: "BLUE" number: 1 } }
  message_type {
    name: "All"
    field { name: "d" number: 1 type: TYPE_DOUBLE }
    field { name: "f" number: 2 type: TYPE_FLOAT }
    field { name: "i32" number: 3 type: TYPE_INT32 }
    field { name: "i64" number: 4 type: TYPE_INT64 }
    field { name: "u32" number: 5 type: TYPE_UINT32 }
    field { name: "u64" number: 6 type: TYPE_FIXED64 }
    field { name: "flag" number: 7 type: TYPE_BOOL }
    field { name: "text" number: 8 type: TYPE_STRING }
    field { name: "raw" number: 9 type: TYPE_BYTES }
    field { name: "color" number: 10 type: TYPE_ENUM type_name: ".Color" }
    field { name: "inner" number: 11 type: TYPE_MESSAGE type_name: ".Inner" }
    field { name: "maybe" number: 12 type: TYPE_DOUBLE oneof_index: 0
            proto3_optional: true }
    field { name: "list" number: 13 type: TYPE_SINT64 label: LABEL_REPEATED }
    field { name: "map" number: 14 type: TYPE_MESSAGE label: LABEL_REPEATED
            type_name: ".All.MapEntry" }
    nested_type {
      name: "MapEntry" options { map_entry: true }
      field { name: "key" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL }
      field { name: "value" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL }
    }
    oneof_decl { name: "_maybe" }
  }
  message_type { name: "Inner"
                 field { name: "n" number: 1 type: TYPE_INT32 } })";

class ProtoJsonTest : public testing::Test {
 protected:
  ProtoJsonTest() {
    google::protobuf::FileDescriptorProto file;
    EXPECT_TRUE(TextFormat::ParseFromString(kFile, &file));
    const google::protobuf::FileDescriptor* built = pool_.BuildFile(file);
    all_.reset(
        factory_.GetPrototype(built->FindMessageTypeByName("All"))->New());
  }

  std::string JsonOf(const std::string& text) {
    EXPECT_TRUE(TextFormat::ParseFromString(text, all_.get()));
    return ProtoJson(*all_).dump();
  }

  google::protobuf::DescriptorPool pool_;
  google::protobuf::DynamicMessageFactory factory_{&pool_};
  std::unique_ptr<Message> all_;
};

TEST_F(ProtoJsonTest, PrintsDefaultsAndNullForWhatIsAbsent) {
  EXPECT_EQ(JsonOf(""),
            R"({"color":"RED","d":0.0,"f":0,"flag":false,"i32":0,"i64":0,)"
            R"("inner":null,"list":[],"map":{},"maybe":null,"raw":"",)"
            R"("text":"","u32":0,"u64":0})");
}

TEST_F(ProtoJsonTest, PrintsEveryTypeUnderSortedNames) {
  EXPECT_EQ(JsonOf(R"(d: 0.1 f: 0.1 i32: -3 i64: -4 u32: 5 u64: 6 flag: true
                text: "a\"b" raw: "\001\377" color: BLUE inner { n: 7 }
                maybe: 0 list: [1, -2]
                map { key: 10 value: "x" } map { key: -2 value: "y" })"),
            R"({"color":"BLUE","d":0.1,"f":0.1,"flag":true,"i32":-3,"i64":-4,)"
            R"("inner":{"n":7},"list":[1,-2],"map":{"-2":"y","10":"x"},)"
            R"("maybe":0.0,"raw":"01ff","text":"a\"b","u32":5,"u64":6})");
}

TEST_F(ProtoJsonTest, IntegersThatADoubleCannotHoldAreStrings) {
  const auto json = nlohmann::json::parse(
      JsonOf("i64: 9007199254740992 u64: 18446744073709551615 "
             "list: [-9007199254740993, -9223372036854775808]"));
  EXPECT_EQ(json["i64"], int64_t{1} << 53);
  EXPECT_EQ(json["u64"], "18446744073709551615");
  EXPECT_EQ(json["list"][0], "-9007199254740993");
  EXPECT_EQ(json["list"][1], "-9223372036854775808");
}

TEST_F(ProtoJsonTest, NumbersThatAreNotFiniteAreNull) {
  const auto json = nlohmann::json::parse(JsonOf("d: nan f: inf maybe: -inf"));
  EXPECT_EQ(json["d"], nullptr);
  EXPECT_EQ(json["f"], nullptr);
  EXPECT_EQ(json["maybe"], nullptr);
}

TEST_F(ProtoJsonTest, PythonReadsIt) {
  const std::string json =
      JsonOf("d: 1e-7 i64: 9007199254740993 text: 'caf\\303\\251'");
  const std::string command = absl::StrCat(
      "python3 -c 'import json, sys\n"
      "j = json.load(sys.stdin)\n"
      "print(j[\"d\"], j[\"i64\"], len(j[\"text\"]), j[\"maybe\"])' <<'END'\n",
      json, "\nEND\n");
  const std::unique_ptr<FILE, int (*)(FILE*)> python(
      popen(command.c_str(), "r"), &pclose);
  ASSERT_NE(python, nullptr);
  char line[100] = "";
  ASSERT_NE(fgets(line, sizeof(line), python.get()), nullptr);
  EXPECT_STREQ(line, "1e-07 9007199254740993 4 None\n");
}

}  // namespace
}  // namespace cohort
