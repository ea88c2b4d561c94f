#pragma once

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <string>

#include "cohort/v1/checkpoint.pb.h"
#include "common/formats/checkpoint_files.h"
#include "common/wire/message_checksum.h"
#include "tests/fakes/temp_dir.h"

namespace cohort {

// Changes the state in the manifest at `path`, as text: `from` becomes `to`,
// with all that is between it and `until`. All checksums are right then.
inline void RewriteState(const std::string& path, const std::string& from,
                         const std::string& to, const std::string& until = "") {
  using google::protobuf::TextFormat;
  CheckpointManifest manifest = *DecodeCheckpointManifest(path, ReadText(path));
  v1::RunState state;
  ASSERT_TRUE(state.ParseFromString(manifest.state));
  std::string text;
  TextFormat::PrintToString(state, &text);
  const size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from << " in " << text;
  text.replace(at, text.find(until, at + from.size()) - at, to);
  ASSERT_TRUE(TextFormat::ParseFromString(text, &state)) << text;
  manifest.state = SortedEncoding(state);
  WriteText(path, EncodeCheckpointManifest(manifest));
}

}  // namespace cohort
