#include "worker/datasets/idx.h"

#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/status_macros.h"
#include "worker/datasets/files.h"

namespace cohort {
namespace {

constexpr uint32_t kImagesMagic = 0x803;
constexpr uint32_t kLabelsMagic = 0x801;
constexpr int64_t kClasses = 10;
// Far above any data set of this layout, and far below a harmful size.
constexpr int64_t kBytesMax = int64_t{1} << 32;
constexpr size_t kPieceBytes = size_t{1} << 24;

struct GzCloser {
  void operator()(gzFile_s* file) const { gzclose(file); }
};
using GzFile = std::unique_ptr<gzFile_s, GzCloser>;

bool Exists(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0;
}

absl::StatusOr<std::string> FindFile(const std::string& dir,
                                     const std::string& stem) {
  for (const char* ending : {"", ".gz"}) {
    std::string path = absl::StrCat(dir, "/", stem, ending);
    if (Exists(path)) return path;
  }
  return absl::NotFoundError(
      absl::StrCat(dir, "/", stem,
                   ": no such file, plain or .gz; pass the folder that holds "
                   "it as --data_dir"));
}

// zlib also reads uncompressed files.
absl::StatusOr<GzFile> OpenFile(const std::string& path) {
  int64_t size = 0;
  COHORT_ASSIGN_OR_RETURN(FileDescriptor fd, OpenRegularFile(path, &size));
  GzFile file(gzdopen(fd.get(), "rb"));
  if (file == nullptr) {
    return absl::NotFoundError(
        absl::StrCat(path, ": cannot open: ", std::strerror(errno)));
  }
  fd.Release();
  return file;
}

// Memory grows with the data read, not with the size that a header claims.
absl::StatusOr<std::vector<uint8_t>> ReadExactly(gzFile file,
                                                 const std::string& path,
                                                 size_t bytes) {
  std::vector<uint8_t> out;
  while (out.size() < bytes) {
    const size_t done = out.size();
    const size_t want = std::min(bytes - done, kPieceBytes);
    out.resize(done + want);
    const int got =
        gzread(file, out.data() + done, static_cast<unsigned>(want));
    if (got <= 0) {
      int code = 0;
      const char* text = gzerror(file, &code);
      return absl::DataLossError(absl::StrCat(
          path, ": truncated or damaged: got ", done, " bytes, want ", bytes,
          code == Z_OK ? "" : absl::StrCat(" (", text, ")")));
    }
    out.resize(done + static_cast<size_t>(got));
  }
  return out;
}

// Reads a header of `dimensions` extents and the bytes it announces.
absl::StatusOr<std::vector<uint8_t>> ReadTensor(const std::string& path,
                                                uint32_t magic,
                                                absl::Span<int64_t> extents) {
  COHORT_ASSIGN_OR_RETURN(GzFile file, OpenFile(path));
  COHORT_ASSIGN_OR_RETURN(
      const std::vector<uint8_t> header,
      ReadExactly(file.get(), path, 4 + 4 * extents.size()));
  const auto number = [&header](size_t i) {
    const uint8_t* b = header.data() + 4 * i;
    return static_cast<uint32_t>(b[0]) << 24 |
           static_cast<uint32_t>(b[1]) << 16 |
           static_cast<uint32_t>(b[2]) << 8 | static_cast<uint32_t>(b[3]);
  };
  if (number(0) != magic) {
    return absl::DataLossError(absl::StrCat(path, ": got magic number 0x",
                                            absl::Hex(number(0)), ", want 0x",
                                            absl::Hex(magic)));
  }
  int64_t bytes = 1;
  for (size_t i = 0; i < extents.size(); ++i) {
    extents[i] = number(i + 1);
    if (extents[i] == 0 || extents[i] > kBytesMax / bytes) {
      return absl::DataLossError(absl::StrCat(path, ": got extent ", extents[i],
                                              ", want at least 1 and at most ",
                                              kBytesMax, " bytes in total"));
    }
    bytes *= extents[i];
  }
  COHORT_ASSIGN_OR_RETURN(
      std::vector<uint8_t> content,
      ReadExactly(file.get(), path, static_cast<size_t>(bytes)));
  // Reading past the data also makes zlib verify the checksum at the end.
  uint8_t extra = 0;
  if (gzread(file.get(), &extra, 1) > 0) {
    return absl::DataLossError(absl::StrCat(path, ": got more than the ", bytes,
                                            " bytes its header announces"));
  }
  int code = Z_OK;
  const char* text = gzerror(file.get(), &code);
  if (code != Z_OK) {
    return absl::DataLossError(
        absl::StrCat(path, ": truncated or damaged at its end: ", text));
  }
  return content;
}

struct SplitShape {
  int64_t height = 0;
  int64_t width = 0;
};

absl::StatusOr<ImageSplit> ReadSplit(const std::string& dir,
                                     const std::string& stem,
                                     SplitShape* shape) {
  COHORT_ASSIGN_OR_RETURN(
      const std::string images,
      FindFile(dir, absl::StrCat(stem, "-images-idx3-ubyte")));
  COHORT_ASSIGN_OR_RETURN(
      const std::string labels,
      FindFile(dir, absl::StrCat(stem, "-labels-idx1-ubyte")));
  ImageSplit split;
  std::vector<int64_t> extents(3);
  COHORT_ASSIGN_OR_RETURN(
      split.pixels, ReadTensor(images, kImagesMagic, absl::MakeSpan(extents)));
  *shape = {.height = extents[1], .width = extents[2]};
  std::vector<int64_t> count(1);
  COHORT_ASSIGN_OR_RETURN(
      const std::vector<uint8_t> classes,
      ReadTensor(labels, kLabelsMagic, absl::MakeSpan(count)));
  if (extents[0] != count[0]) {
    return absl::DataLossError(absl::StrCat(labels, ": got ", count[0],
                                            " labels, want ", extents[0],
                                            ", one per image"));
  }
  for (size_t i = 0; i < classes.size(); ++i) {
    if (classes[i] < kClasses) continue;
    return absl::DataLossError(absl::StrCat(
        labels, ": sample ", i, ": got label ", static_cast<int>(classes[i]),
        ", want 0 to ", kClasses - 1));
  }
  split.labels.assign(classes.begin(), classes.end());
  split.samples = count[0];
  return split;
}

}  // namespace

absl::StatusOr<ImageTable> ReadIdx(const std::string& name,
                                   const std::string& data_dir) {
  if (!Exists(data_dir)) {
    return absl::NotFoundError(
        absl::StrCat(data_dir, ": no such folder; pass the folder of ", name,
                     "'s IDX files as --data_dir"));
  }
  ImageTable table{.name = name, .classes = kClasses, .channels = 1};
  SplitShape train;
  SplitShape test;
  COHORT_ASSIGN_OR_RETURN(table.train, ReadSplit(data_dir, "train", &train));
  COHORT_ASSIGN_OR_RETURN(table.test, ReadSplit(data_dir, "t10k", &test));
  if (train.height != test.height || train.width != test.width) {
    return absl::DataLossError(absl::StrCat(
        data_dir, ": test images are ", test.height, "x", test.width,
        ", train images ", train.height, "x", train.width, "; want one size"));
  }
  table.height = train.height;
  table.width = train.width;
  return table;
}

}  // namespace cohort
