#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/batch_norm_args.h"
#include "kernels/data_type.h"
#include "tests/kernels/sample_data.h"

namespace cohort::kernels::cuda {

// A shape, and its tensors' alignment: elements behind a boundary of 16 bytes.
struct Layout {
  BatchShape shape;
  int32_t shift = 0;
};

// Channel counts around the access widths, runs of every length, both layouts,
// and slices. Tensors are as large as `elements_max` permits, with several
// images. With `every_shape`, shapes that exceed it have one image instead of
// none.
inline std::vector<Layout> Layouts(int64_t elements_max,
                                   bool every_shape = false) {
  std::vector<Layout> layouts;
  for (int64_t channels : {1, 3, 48, 64, 65, 100, 2048, 2049}) {
    for (int64_t inner : {1, 7 * 7, 56 * 56, 112 * 112}) {
      int64_t images = elements_max / (channels * inner);
      if (images == 0 && !every_shape) continue;
      images = std::max<int64_t>(images, 1);
      // Contiguous first; then channels_last, whose runs have one element.
      const int64_t outer = std::min<int64_t>(images, 37);
      layouts.push_back({{outer, channels, inner}, 0});
      layouts.push_back({{outer, channels, inner}, 1});
      if (inner > 1) {
        layouts.push_back({{std::min<int64_t>(images, 3) * inner, channels, 1},
                           static_cast<int32_t>(channels % 4)});
      }
    }
  }
  // The shortest and longest runs of each kernel; few and many rows.
  for (int64_t inner : {2, 9, 196, 511, 512, 513}) {
    layouts.push_back({{1, 5, inner}, 0});
    layouts.push_back({{11, 5, inner}, 3});
  }
  layouts.push_back({{1, 1, 1}, 0});
  layouts.push_back({{1, 1, 3}, 1});
  layouts.push_back({{1, 65, 1}, 2});
  layouts.push_back({{2, 3, 1}, 0});
  layouts.push_back({{4007, 5, 1}, 0});
  return layouts;
}

inline std::string Describe(const Layout& layout) {
  return absl::StrCat(kernels::Describe(layout.shape), " shifted by ",
                      layout.shift);
}

// Calls f(std::type_identity<T>()) for the types that the kernels take.
template <typename F>
void ForEachTensorType(F f) {
  f(std::type_identity<float>());
  f(std::type_identity<Float16>());
  f(std::type_identity<BFloat16>());
}

template <typename T>
std::string TypeName() {
  if (std::is_same_v<T, Float16>) return "float16";
  return std::is_same_v<T, BFloat16> ? "bfloat16" : "float32";
}

}  // namespace cohort::kernels::cuda
