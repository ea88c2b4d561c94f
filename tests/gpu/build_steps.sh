# Building, bundling and finding the programs of tests/gpu/run, which sources
# this file and calls the steps by name: shellcheck takes them for unreachable.
# shellcheck shell=bash disable=SC2317,SC2154,SC2034

readonly worker_build_dir=$source_dir/build/gpu-worker
# In seconds.
readonly build_limit=300
readonly kernels_programs=(cohort_cuda_kernels_test cohort_cuda_bench)
readonly worker_programs=(cohort-server cohort-worker cohortctl
  cohort_accelerator_test cohort_device_test cohort_train_test)

# The smaller of a limit and the remaining time.
limited() {
  local left=$((whole_limit - SECONDS))
  ((left >= 1)) || left=1
  printf '%s\n' $(($1 < left ? $1 : left))
}

has_nvcc() {
  if command -v nvcc >/dev/null || [[ -x /usr/local/cuda/bin/nvcc ]]; then
    return 0
  fi
  echo "no nvcc here: install CUDA 13, or pass --bin=DIR (see --help)" >&2
  return 1
}

torch_folder() {
  python3 -c 'import os, torch; print(os.path.dirname(torch.__file__))'
}

# The wanted architectures, or that of the GPU here, such as 90; otherwise all
# that builds support.
architectures() {
  if [[ -n $wanted_architectures ]]; then
    printf '%s\n' "$wanted_architectures"
    return
  fi
  local found
  found=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null |
    tr -d . | sort -u | paste -sd ';')
  printf '%s\n' "${found:-80;90}"
}

# Unpacks the result of tests/gpu/pack; a folder is used as it is.
unpack_deps() {
  if [[ -d $deps ]]; then
    deps_root=$deps
    return 0
  fi
  deps_root=$source_dir/build/gpu-deps
  mkdir -p "$deps_root" && tar -C "$deps_root" -xf "$deps" &&
    du -sh "$deps_root"
}

# Sets cmake_flags: how CMake finds the packages, and programs their libraries.
set_cmake_flags() {
  # By DT_RPATH, which also applies to the libraries that libraries need.
  local link_flags=-Wl,--disable-new-dtags
  cmake_flags=(-G Ninja -DCMAKE_BUILD_TYPE=Release
    -DCOHORT_CUDA_ARCHITECTURES="$(architectures)")
  if [[ -n $bundle_dir ]]; then
    # Beside the program; and the front-end's module is two folders below.
    # shellcheck disable=SC2016
    cmake_flags+=('-DCMAKE_BUILD_RPATH=$ORIGIN;$ORIGIN/../..')
  fi
  if [[ -n $deps ]]; then
    unpack_deps || return 1
    local usr=$deps_root/usr
    local lib=$usr/lib/x86_64-linux-gnu
    link_flags+=" -Wl,-rpath,$lib -Wl,-rpath-link,$lib"
    cmake_flags+=(
      -DCMAKE_PREFIX_PATH="$usr"
      -DCMAKE_LIBRARY_ARCHITECTURE=x86_64-linux-gnu
      -DPKG_CONFIG_EXECUTABLE="$usr/bin/pkgconf"
      -DCOHORT_CHART_JS="$usr/share/javascript/chart.js/chart.min.js"
      -DCOHORT_WARNINGS_ARE_ERRORS=OFF
    )
  fi
  cmake_flags+=(-DCMAKE_EXE_LINKER_FLAGS="$link_flags"
    -DCMAKE_MODULE_LINKER_FLAGS="$link_flags")
}

# Without the worker: the kernels are tried even where that does not build.
build_kernels() {
  # What an earlier build left is not run if this one fails.
  rm -f "${kernels_programs[@]/#/$kernels_build_dir/bin/}"
  has_nvcc && set_cmake_flags &&
    cmake -S "$source_dir" -B "$kernels_build_dir" "${cmake_flags[@]}" \
      -DCOHORT_BUILD_WORKER=OFF &&
    cmake --build "$kernels_build_dir" --parallel "$(nproc)" \
      --target "${kernels_programs[@]}"
}

# Worker and front-end. If one target fails, the others are still built.
build_worker() {
  local torch_dir targets=("${worker_programs[@]}")
  rm -f "${worker_programs[@]/#/$worker_build_dir/bin/}"
  has_nvcc || return 1
  torch_dir=$(torch_folder) || {
    echo "python3 has no torch here: the worker is built against it" >&2
    return 1
  }
  set_cmake_flags || return 1
  echo "LibTorch of $torch_dir"
  if has python; then
    if python3 -c 'import nanobind' 2>/dev/null; then
      cmake_flags+=(-DCOHORT_PYTHON="$(command -v python3)")
      targets+=(_core)
    else
      echo "python3 has no nanobind here: no front-end" >&2
    fi
  fi
  cmake -S "$source_dir" -B "$worker_build_dir" "${cmake_flags[@]}" \
    -DCOHORT_TORCH_DIR="$torch_dir" || return 1
  local limit=$build_limit
  if [[ -n $bundle_dir ]]; then limit=0; fi
  timeout "$limit" cmake --build "$worker_build_dir" \
    --parallel "$(nproc)" --target "${targets[@]}" -- -k 0
}

# Copies programs, stripped, and the libraries that they need, but not torch's,
# nor those of the C and C++ runtime, which must fit the machine.
bundle() {
  local torch_dir
  torch_dir=$(torch_folder 2>/dev/null) || torch_dir=/nowhere/torch
  mkdir -p "$bundle_dir" || return 1
  local program
  for program in "${kernels_programs[@]/#/$kernels_build_dir/bin/}" \
    "${worker_programs[@]/#/$worker_build_dir/bin/}"; do
    if [[ -x $program ]]; then
      strip -o "$bundle_dir/${program##*/}" "$program" || return 1
    fi
  done
  local modules=("$worker_build_dir"/python-package/cohort/_core*.so)
  if [[ -e ${modules[0]} ]]; then
    mkdir -p "$bundle_dir"/python &&
      cp -rL "$worker_build_dir"/python-package/cohort "$bundle_dir"/python &&
      strip "$bundle_dir"/python/cohort/_core*.so || return 1
  fi
  find "$bundle_dir" -type f -executable -exec ldd {} + 2>/dev/null |
    awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
    grep -v "^$(realpath -m "$bundle_dir")/" | grep -v "^${torch_dir%/torch}/" |
    grep -Ev '/(libc|libm|libdl|librt|libpthread|libcuda|libstdc\+\+|libgcc_s|libgomp)[-.]' |
    xargs -r cp -L -t "$bundle_dir"
  du -sh "$bundle_dir"
}

# Sets kernels_bin, worker_bin and python_package; with --bundle, ends here.
use_binaries() {
  if [[ -n $bin_dir ]]; then
    kernels_bin=$bin_dir
    worker_bin=$bin_dir
    python_package=$bin_dir/python
    # The program looks for torch where it was built.
    worker_libraries=$(torch_folder 2>/dev/null) && worker_libraries+=/lib
    return
  fi
  kernels_bin=$kernels_build_dir/bin
  worker_bin=$worker_build_dir/bin
  python_package=$worker_build_dir/python-package
  worker_libraries=
  if has kernels; then step "build of the kernels" build_kernels; fi
  if has worker || has python; then
    step "build of worker and front-end" build_worker
  fi
  if [[ -n $bundle_dir ]]; then
    if ((failed == 0)); then step "bundle" bundle; fi
    finish
  fi
}
