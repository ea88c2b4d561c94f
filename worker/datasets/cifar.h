#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "worker/datasets/image_table.h"

namespace cohort {

// Reads CIFAR in its binary layout, from the folder that holds the files or
// the one that holds the archive's folder (cifar-10-batches-bin,
// cifar-100-binary):
//   cifar10: data_batch_1.bin to data_batch_5.bin, test_batch.bin
//   cifar100: train.bin, test.bin
// A record is the class (cifar100: a coarse class, which is ignored, then the
// class) and 3072 bytes: 32x32 red, green, blue. A file holds any number of
// records.
// Source: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images",
//   2009, and the README of its binary version.
//
// `name`: cifar10 or cifar100.
// Errors: InvalidArgument no folder given; NotFound folder or file; DataLoss a
//   file that is empty or ends within a record, a class out of range.
absl::StatusOr<ImageTable> ReadCifar(const std::string& name,
                                     const std::string& data_dir);

}  // namespace cohort
