#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "common/formats/csv.h"
#include "common/formats/file_system.h"
#include "common/formats/json_depth.h"
#include "common/formats/trace_file.h"
#include "common/formats/trace_merge.h"
#include "common/printable.h"
#include "server/core/optimizer/mask.h"
#include "server/core/settings/freeze_spec.h"
#include "server/ctl/study/run_result.h"
#include "tests/fuzz/scratch_folder.h"
#include "tests/fuzz/target.h"

namespace cohort::fuzz {
namespace {

void CheckCsv(absl::string_view line) {
  const std::vector<std::string> fields = CsvFields(line);
  COHORT_CHECK(!fields.empty(), "no field");
  std::vector<std::string> quoted;
  for (const std::string& field : fields) quoted.push_back(CsvQuoted(field));
  COHORT_CHECK(CsvFields(absl::StrJoin(quoted, ",")) == fields,
               "fields change when they are written and read");
}

void CheckPrintable(absl::string_view text) {
  const std::string shown = Printable(text);
  COHORT_CHECK(IsPrintable(shown), shown);
  COHORT_CHECK(Printable(shown) == shown, shown);
  COHORT_CHECK(IsPrintable(text) == (shown == text), shown);
}

void CheckFreeze(absl::string_view text) {
  const absl::StatusOr<FreezeSpec> spec = ParseFreezeSpec(text);
  RequireCode(spec.status(), {absl::StatusCode::kInvalidArgument});
  static const ModelLayout layout = {
      .parameters = {{.name = "conv.weight", .shape = {2, 3, 4}},
                     {.name = "bias", .shape = {2}}}};
  static const std::vector<Partition> partitions = MakePartitions(layout, 16);
  RequireCode(MakeMask({Text(text)}, layout, partitions).status(),
              {absl::StatusCode::kInvalidArgument,
               absl::StatusCode::kFailedPrecondition});
}

// The table of a run, which `cohortctl study` reads.
void CheckTable(absl::string_view text) {
  const absl::StatusOr<RunResult> result = ParseRunResult({"sync"}, text);
  RequireCode(result.status(), {absl::StatusCode::kDataLoss});
  if (!result.ok()) return;
  result->Gap("sync");
}

void CheckTraces(absl::string_view text) {
  static const ScratchFolder& folder = *new ScratchFolder();
  Reader reader(text);
  folder.Write("a", reader.Until('\0'));
  folder.Write("b", reader.Rest());
  const std::vector<std::string> paths = {folder.File("a"), folder.File("b")};
  const absl::StatusOr<MergedTrace> merged =
      MergeTraces(absl::MakeConstSpan(paths).first(text.size() % 2 + 1),
                  folder.File("merged"));
  RequireCode(merged.status(), {absl::StatusCode::kInvalidArgument,
                                absl::StatusCode::kDataLoss});
}

void RunText(absl::string_view input) {
  Reader reader(input);
  const int32_t kind = reader.Below(5);
  const absl::string_view text = reader.Rest();
  NestsDeeperThan(text, kJsonNestingMax);
  switch (kind) {
    case 0:
      return CheckCsv(text);
    case 1:
      return CheckPrintable(text);
    case 2:
      return CheckFreeze(text);
    case 3:
      return CheckTable(text);
    default:
      return CheckTraces(text);
  }
}

// A span as TraceFile writes it.
std::string TraceText() {
  const ScratchFolder folder;
  {
    auto trace = TraceFile::Create(folder.File("trace"), "worker");
    COHORT_CHECK(trace.ok(), trace.status().ToString());
    (*trace)->SetIdentity("3f2a", 1);
    (*trace)->SetServerClock(absl::Microseconds(5), absl::Microseconds(9));
    (*trace)->Add(
        {.name = "step", .begin = absl::Seconds(1), .end = absl::Seconds(2)});
  }
  return RealFileSystem()
      .ReadFile(folder.File("trace"), kAnyFileSize)
      ->ToString();
}

std::vector<std::string> TextSeeds() {
  const std::string csv(1, '\0');
  const std::string nul(1, '\0');
  return {csv + CsvQuoted("a,\"b\"") + ",2,,x",
          "\x01plain \x1b[31m \xe2\x80\xae \xff",
          "\x02layer4.*",
          "\x02"
          "conv.weight[:,-1,1:3]",
          "\x03version,epoch,samples,seconds,test_accuracy,bn_statistics,test_"
          "miou\n"
          "3,1,60,1.5,0.5,sync,\n3,1,60,1.5,0.4,batch,\n" +
              nul + "staleness_versions,pushes\n0,3\n",
          absl::StrCat("\x04", TraceText(), nul, TraceText())};
}

}  // namespace

Target TextTarget() {
  return {.name = "text",
          .run = RunText,
          .seeds = TextSeeds,
          .input_bytes_max = 1024};
}

}  // namespace cohort::fuzz
