#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <string>
#include <vector>

#include "server/checkpoint/model_tensors.h"
#include "tests/checkpoint/example_state.h"
#include "tests/fakes/faulty_file_system.h"
#include "tests/fakes/statuses.h"
#include "tests/fakes/temp_dir.h"

namespace cohort {
namespace {

using testing::ElementsAre;

// The first Python with numpy, or "".
std::string PythonWithNumpy() {
  for (const char* python : {"python3", "/usr/bin/python3"}) {
    const std::string command =
        std::string(python) + " -c 'import numpy' >/dev/null 2>&1";
    if (system(command.c_str()) == 0) return python;
  }
  return "";
}

std::string OutputOf(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  EXPECT_NE(pipe, nullptr) << command;
  if (pipe == nullptr) return "";
  std::string output;
  for (int c = fgetc(pipe); c != EOF; c = fgetc(pipe)) {
    output.push_back(static_cast<char>(c));
  }
  EXPECT_EQ(pclose(pipe), 0) << command;
  return output;
}

TEST(ModelExportTest, NumpyReadsTheModelUnderPyTorchsNames) {
  const std::string python = PythonWithNumpy();
  if (python.empty()) GTEST_SKIP() << "no python3 with numpy on this machine";
  const TempDir dir;
  const RunState state = ExampleState(2);
  const std::string path = dir.File("model.safetensors");
  ExpectOk(WriteModel(RealFileSystem(), path, *state.model, *state.snapshot));
  EXPECT_EQ(OutputOf(python + " '" COHORT_READ_MODEL_SCRIPT "' '" + path + "'"),
            "metadata [('format', 'pt'), ('version', '2')]\n"
            "conv.weight F32 [2, 3] "
            "[[200.0, 201.0, 202.0], [203.0, 204.0, 205.0]]\n"
            "bn.weight F32 [1] [206.0]\n"
            "bn.bias F32 [1] [207.0]\n"
            "head.weight F32 [3] [208.0, 209.0, 210.0]\n"
            "bn.running_mean F32 [1] [0.5]\n"
            "bn.running_var F32 [1] [2.25]\n"
            "bn.num_batches_tracked I64 [] 2\n");
}

TEST(ModelExportTest, EveryoneMayReadTheModel) {
  const TempDir dir;
  const RunState state = ExampleState(1);
  const std::string path = dir.File("model.safetensors");
  ExpectOk(WriteModel(RealFileSystem(), path, *state.model, *state.snapshot));
  struct stat info = {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0700, 0600u);
}

TEST(ModelExportTest, AFailedExportKeepsTheEarlierModel) {
  const TempDir dir;
  const RunState old_state = ExampleState(1);
  const RunState new_state = ExampleState(2);
  const std::string path = dir.File("model.safetensors");
  ExpectOk(WriteModel(RealFileSystem(), path, *old_state.model,
                      *old_state.snapshot));
  const std::string before = ReadText(path);
  FaultyFileSystem files(
      {.at = 1, .error = absl::ResourceExhaustedError("full")});
  EXPECT_EQ(WriteModel(files, path, *new_state.model, *new_state.snapshot),
            absl::ResourceExhaustedError("full"));
  EXPECT_EQ(ReadText(path), before);
}

// A layer named so that its statistics collide with a parameter.
TEST(ModelExportTest, RefusesTwoTensorsOfOneName) {
  const TempDir dir;
  RunState state = ExampleState(1);
  auto model = std::make_shared<RegisteredModel>(*state.model);
  model->layout.parameters[3].name = "bn.running_mean";
  EXPECT_THAT(
      WriteModel(RealFileSystem(), dir.File("m"), *model, *state.snapshot),
      IsError(kInvalidArgument, "bn.running_mean"));
}

TEST(ModelTensorsTest, ParametersAndPartitionsAreEachOthersInverse) {
  const RunState state = ExampleState(3);
  const std::vector<ByteRope> ropes =
      ParameterRopes(*state.model, Velocities(*state.snapshot));
  ASSERT_EQ(ropes.size(), 4u);
  std::vector<int64_t> bytes;
  for (const ByteRope& rope : ropes) bytes.push_back(rope.size_bytes());
  EXPECT_THAT(bytes, ElementsAre(24, 4, 4, 0));
  const std::vector<SharedFloats> buffers =
      PartitionBuffers(*state.model, ropes);
  ASSERT_EQ(buffers.size(), 3u);
  EXPECT_THAT(buffers[0]->span(), ElementsAre(-300, -301, -302, -303));
  EXPECT_THAT(buffers[1]->span(), ElementsAre(-304, -305, -306, -307));
  EXPECT_EQ(buffers[2], nullptr);
}

}  // namespace
}  // namespace cohort
