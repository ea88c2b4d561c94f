# The worker's part of tests/gpu/run, which sources this file and calls the
# steps by name: shellcheck takes them for unreachable.
# shellcheck shell=bash disable=SC2317,SC2154

readonly worker_build_dir=$source_dir/build/gpu-worker
# In seconds. Everything together, including the kernels' part, takes at most
# ten minutes: a step gets the remaining time if that is less than its own
# limit.
readonly whole_limit=570
readonly build_limit=300
readonly tests_limit=60
readonly runs_limit=200
readonly torch_limit=45

limited() {
  local left=$((whole_limit - SECONDS))
  ((left >= 1)) || left=1
  printf '%s\n' $(($1 < left ? $1 : left))
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

torch_folder() {
  python3 -c 'import os, torch; print(os.path.dirname(torch.__file__))'
}

# The architecture of the GPU here, such as 90; otherwise all that builds
# support.
architectures() {
  local found
  found=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null |
    tr -d . | sort -u | paste -sd ';')
  printf '%s\n' "${found:-80;90}"
}

# Sets from_deps: how CMake finds the bundle's content.
find_deps() {
  from_deps=()
  [[ -n $deps ]] || return 0
  unpack_deps || return 1
  local usr=$deps_root/usr
  local lib=$usr/lib/x86_64-linux-gnu
  # By DT_RPATH, which also applies to the libraries that libraries need.
  from_deps=(
    -DCMAKE_PREFIX_PATH="$usr"
    -DCMAKE_LIBRARY_ARCHITECTURE=x86_64-linux-gnu
    -DPKG_CONFIG_EXECUTABLE="$usr/bin/pkgconf"
    -DCOHORT_CHART_JS="$usr/share/javascript/chart.js/chart.min.js"
    -DCMAKE_EXE_LINKER_FLAGS="-Wl,--disable-new-dtags -Wl,-rpath,$lib -Wl,-rpath-link,$lib"
    -DCOHORT_WARNINGS_ARE_ERRORS=OFF
  )
}

build_worker() {
  local torch_dir
  has_nvcc || return 1
  torch_dir=$(torch_folder) || {
    echo "python3 has no torch here: the worker is built against it" >&2
    return 1
  }
  find_deps || return 1
  echo "LibTorch of $torch_dir"
  cmake -S "$source_dir" -B "$worker_build_dir" -G Ninja \
    -DCMAKE_BUILD_TYPE=Release -DCOHORT_TORCH_DIR="$torch_dir" \
    -DCOHORT_CUDA_ARCHITECTURES="$(architectures)" "${from_deps[@]}" || return 1
  # If one target fails, the others are still built.
  timeout "$(limited $build_limit)" cmake --build "$worker_build_dir" \
    --parallel "$(nproc)" --target cohort-server cohort-worker cohortctl \
    cohort_accelerator_test cohort_device_test cohort_train_test -- -k 0
}

run_worker_test() {
  local program=$worker_build_dir/bin/$1
  shift
  [[ -x $program ]] || {
    echo "$program was not built"
    return 1
  }
  local output code
  output=$(mktemp)
  timeout "$(limited $tests_limit)" "$program" --gtest_brief=1 "$@" 2>&1 |
    tee "$output"
  code=${PIPESTATUS[0]}
  # A test that did not run on the GPU has not passed.
  if [[ $code == 0 ]] && grep -q '^\[  SKIPPED \]' "$output"; then
    code=$exit_skipped
  fi
  rm -f "$output"
  return "$code"
}

# Impossible devices are refused before the worker connects to a server.
run_refusals() {
  local text code
  text=$(timeout "$(limited 30)" "$worker_build_dir/bin/cohort-worker" --device=cuda:99 \
    --server=127.0.0.1:1 --dataset=synthetic 2>&1)
  code=$?
  printf '%s\n' "$text"
  [[ $code == 3 && $text == *"--device: got cuda:99"* ]] || return 1
  # Without a GPU the message is a different one.
  [[ $text == *"numbered from 0"* ]] || return "$exit_skipped"
}

run_training() {
  python3 -B "$source_dir/tests/gpu/training_runs.py" \
    --bin="$worker_build_dir/bin" --limit_s="$(limited $runs_limit)"
}

run_torch_training() {
  timeout "$(limited $torch_limit)" python3 -B "$source_dir/tests/gpu/torch_training.py"
}

worker_part() {
  step "worker: build" build_worker
  if ((failed)) && [[ ! -x $worker_build_dir/bin/cohort-worker ]]; then
    return 0
  fi
  step "worker: accelerator" run_worker_test cohort_accelerator_test
  step "worker: device" run_worker_test cohort_device_test
  step "worker: trainer on the GPU" run_worker_test cohort_train_test \
    --gtest_filter='*Device*:*Gpu*'
  step "worker: refusals" run_refusals
  if [[ $gpu == false ]] || ! nvidia-smi >/dev/null 2>&1; then
    gpu=false
    note "worker: training" SKIPPED
    return 0
  fi
  step "worker: training" run_training
  step "worker: one PyTorch process" run_torch_training
}
