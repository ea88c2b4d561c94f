# The steps of tests/gpu/run for the worker and the front-end, which sources this
# file and calls the steps by name: shellcheck takes them for unreachable.
# shellcheck shell=bash disable=SC2317,SC2154

# In seconds: a step gets the remaining time if that is less than its limit.
readonly tests_limit=60
readonly runs_limit=240
readonly torch_limit=60
readonly python_limit=180

# Runs one of the programs that load torch's libraries.
with_torch() {
  local libraries=${worker_libraries:+$worker_libraries:}${LD_LIBRARY_PATH-}
  env ${libraries:+LD_LIBRARY_PATH="${libraries%:}"} "$@"
}

# Impossible devices are refused before the worker connects to a server.
run_refusals() {
  local text code
  text=$(with_torch timeout "$(limited 30)" "$worker_bin/cohort-worker" --device=cuda:99 \
    --server=127.0.0.1:1 --dataset=synthetic 2>&1)
  code=$?
  printf '%s\n' "$text"
  [[ $code == 3 && $text == *"--device: got cuda:99"* ]] || return 1
  # Without a GPU the message is a different one.
  [[ $text == *"numbered from 0"* ]] || return "$exit_skipped"
}

# Images of 224 x 224 pixels, for resnet50.
write_images() {
  python3 -B "$source_dir/tests/gpu/images.py" "$images" 640 128 224 10
}

run_training() {
  with_torch python3 -B "$source_dir/tests/gpu/training_runs.py" \
    --bin="$worker_bin" --images="$images" --limit_s="$(limited $runs_limit)"
}

run_torch_training() {
  timeout "$(limited $torch_limit)" \
    python3 -B "$source_dir/tests/gpu/torch_training.py" --images="$images"
}

run_python() {
  COHORT_BIN_DIR=$worker_bin PYTHONPATH=$python_package:$source_dir/tests/python:$source_dir/tests/integration \
    timeout "$(limited $((python_limit + 20)))" \
    python3 -B "$source_dir/tests/gpu/python_runs.py" \
    --limit_s="$(limited $python_limit)"
}

worker_part() {
  step "worker: accelerator" run_test $tests_limit \
    "$worker_bin"/cohort_accelerator_test
  step "worker: device" run_test $tests_limit "$worker_bin"/cohort_device_test
  step "worker: trainer on the GPU" run_test $tests_limit \
    "$worker_bin"/cohort_train_test \
    --gtest_filter='*Device*:*Gpu*'
  step "worker: refusals" run_refusals
  if [[ $gpu == false ]] || ! nvidia-smi >/dev/null 2>&1; then
    gpu=false
    note "worker: training" SKIPPED
    return 0
  fi
  images=$scratch/images
  step "worker: images" write_images
  step "worker: training" run_training
  step "worker: one PyTorch process" run_torch_training
}

python_part() {
  step "python: the front-end" run_python
  if [[ ${summary[-1]} == *SKIPPED ]]; then gpu=false; fi
}
