#pragma once

#include <cmath>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/batch_norm_args.h"
#include "tests/fakes/statuses.h"
#include "tests/gpu/machine.h"
#include "tests/gpu/shapes.h"
#include "tests/kernels/sample_data.h"

namespace cohort::kernels::cuda {

// A layer in the middle of a step, with uneven values, and the kernels' results
// on a machine. Parameters are float32.
template <typename T>
struct Layer {
  explicit Layer(const Layout& the_layout)
      : layout(the_layout), shape(the_layout.shape) {
    Numbers numbers(21);
    x = numbers.Take<T>(Elements(shape), 1);
    z = numbers.Take<T>(Elements(shape));
    dy = numbers.Take<T>(Elements(shape));
    mean = numbers.Take<double>(shape.channels, 1);
    invstd = numbers.Take<double>(shape.channels, 2);
    gamma = numbers.Take<float>(shape.channels, 1);
    beta = numbers.Take<float>(shape.channels);
    sum_dy = numbers.Take<double>(shape.channels, 0, 10);
    sum_dy_xmu = numbers.Take<double>(shape.channels, 0, 10);
  }

  Tensor<T> Put(Machine& machine, const std::vector<T>& values) const {
    return Tensor<T>(machine, values, layout.shift);
  }

  std::vector<T> Forward(Machine& machine, bool relu, bool add) const {
    const Tensor<T> put_x = Put(machine, x), put_z = Put(machine, z);
    const Tensor<T> y = Put(machine, std::vector<T>(x.size()));
    const Tensor<double> put_mean(machine, mean), put_invstd(machine, invstd);
    const Tensor<float> put_gamma(machine, gamma), put_beta(machine, beta);
    ExpectOk(machine.Normalize({.shape = shape,
                                .type = TypeOf<T>(),
                                .x = put_x.get(),
                                .mean = put_mean.get(),
                                .invstd = put_invstd.get(),
                                .gamma = put_gamma.get(),
                                .beta = put_beta.get(),
                                .add = add ? put_z.get() : nullptr,
                                .relu = relu,
                                .y = y.get()}));
    std::vector<T> values = y.Take();
    machine.Clear();
    return values;
  }

  struct Sums {
    std::vector<double> dy;
    std::vector<double> dy_xmu;
    // Empty unless requested.
    std::vector<T> dz;

    friend bool operator==(const Sums&, const Sums&) = default;
  };

  // If `y` is null, the mask is recomputed.
  Sums Reduce(Machine& machine, bool relu, const std::vector<T>* y,
              bool stores_dz) const {
    const Tensor<T> put_x = Put(machine, x), put_dy = Put(machine, dy);
    const Tensor<T> put_y = Put(machine, y == nullptr ? x : *y);
    const Tensor<T> dz = Put(machine, std::vector<T>(x.size()));
    const Tensor<double> put_mean(machine, mean), put_invstd(machine, invstd);
    const Tensor<float> put_gamma(machine, gamma), put_beta(machine, beta);
    const std::vector<double> unwritten(mean.size(), 7);
    const Tensor<double> sum(machine, unwritten), product(machine, unwritten);
    ExpectOk(machine.BackwardReduce({.shape = shape,
                                     .type = TypeOf<T>(),
                                     .x = put_x.get(),
                                     .dy = put_dy.get(),
                                     .mean = put_mean.get(),
                                     .sum_dy = sum.get(),
                                     .sum_dy_xmu = product.get(),
                                     .relu = relu,
                                     .y = y == nullptr ? nullptr : put_y.get(),
                                     .invstd = put_invstd.get(),
                                     .gamma = put_gamma.get(),
                                     .beta = put_beta.get(),
                                     .dz = stores_dz ? dz.get() : nullptr}));
    Sums sums = {sum.Take(), product.Take(), {}};
    if (stores_dz) sums.dz = dz.Take();
    machine.Clear();
    return sums;
  }

  std::vector<T> Backward(Machine& machine, bool relu, bool frozen) const {
    const Tensor<T> put_x = Put(machine, x), put_dy = Put(machine, dy);
    const Tensor<T> dx = Put(machine, std::vector<T>(x.size()));
    const Tensor<double> put_mean(machine, mean), put_invstd(machine, invstd);
    const Tensor<float> put_gamma(machine, gamma), put_beta(machine, beta);
    const Tensor<double> sum(machine, sum_dy), product(machine, sum_dy_xmu);
    ExpectOk(machine.BackwardElementwise(
        {.shape = shape,
         .type = TypeOf<T>(),
         .x = put_x.get(),
         .dy = put_dy.get(),
         .mean = put_mean.get(),
         .invstd = put_invstd.get(),
         .gamma = put_gamma.get(),
         .sum_dy = frozen ? nullptr : sum.get(),
         .sum_dy_xmu = frozen ? nullptr : product.get(),
         .total_count = frozen ? 0 : 3 * shape.count(),
         .relu = relu,
         .beta = put_beta.get(),
         .dx = dx.get()}));
    std::vector<T> values = dx.Take();
    machine.Clear();
    return values;
  }

  Layout layout;
  BatchShape shape;
  std::vector<T> x, z, dy;
  std::vector<double> mean, invstd;
  std::vector<float> gamma, beta;
  std::vector<double> sum_dy, sum_dy_xmu;
};

// Rounded to T once; float32 on the way, at most six roundings of values no
// larger than `magnitude`.
template <typename T>
bool NearInFloat(T got, double want, double magnitude) {
  return std::abs(static_cast<double>(got) - want) <=
         static_cast<double>(RoundingError<T>(want)) * 1.01 +
             6 * 0x1p-24 * magnitude;
}

class LayerTest : public MachineTest {
 protected:
  // Every layout, in every type.
  template <typename F>
  void ForEachLayer(F f) {
    for (const Layout& layout : Layouts(machine().elements_max() / 2)) {
      ForEachTensorType([&]<typename T>(std::type_identity<T>) {
        SCOPED_TRACE(absl::StrCat(Describe(layout), " of ", TypeName<T>()));
        f(Layer<T>(layout));
      });
    }
  }
};

}  // namespace cohort::kernels::cuda
