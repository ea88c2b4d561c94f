#!/usr/bin/env python3
"""Training shapes whose rank 1 is killed in the second step and replaced: the
numbers are those of one process, or there is an error by name.

usage: shapes_kill_test.py [--all] [--together=N] [--verbose] [ROW...]

The rows are those of shapes_test.py that are right there; by default the ones
below, with --all each. Each is run three times by two workers: the rank ends after
the forward pass, after the backward pass, and after job.step(), before what the
script does then. What a replacement does not know, such as a teacher that the
killed process kept in its memory, has to be refused, unless the row `survives`.
"""

import functools
import os
import pathlib
import sys

import shapes_test
from shapes import rows, runner

# Of each kind of state that a void step could leave behind.
ROWS = (
    "straight", "numbered_samples", "adam", "schedule_by_step", "schedule_by_a_measure",
    "rates_by_hand", "rate_multiplied_by_hand",
    "dropout_under_a_seed", "accumulate", "unfrozen_at_a_step",
    "warm_up_passes_without_gradients", "momentum_by_step", "statistics_reset",
    "buffers_written_in_a_step", "buffers_saved_and_restored_around_a_pass",
    "eval_pass_before_a_training_call", "eval_pass_after_a_training_call",
    "statistics_in_the_loss", "state_dict_in_the_run",
    "averaged_model", "averaged_model_with_buffers",
    "averaged_model_with_buffers_after_each_applied_step",
    "mean_teacher_in_eval_mode", "mean_teacher_in_train_mode", "teacher_by_data", "byol",
    "simsiam", "function_with_a_layers_buffers",
    "function_with_foreign_registered_buffers",
    "functional_call_with_a_teachers_buffers",
    "adversarial_samples_in_train_mode", "gradient_penalty", "third_order",
    "saliency_that_keeps_the_graph", "checkpointing",
    "a_layer_that_rank_0_calls", "layers_in_another_order_by_rank",
    "stochastic_depth_by_rank", "two_normalisers", "dice_over_the_batch", "simclr",
    "clip", "sums_between_layers", "penalty_through_sums", "kept_teacher",
    "kept_teacher_in_train_mode", "kept_byol", "kept_queue", "kept_centre",
    "centre_by_a_rule", "kept_codebook", "kept_observer", "kept_average",
    "spectral_norm", "two_normalizers", "a_normalizer_and_void_steps", "a_normalizer_in_the_model",
    "wrapper_of_own_and_kept_tensors",
    "a_scaler_above_batch_norm", "a_scaler_with_adam_over_parts", "dcgan",
    "generator_every_other_batch", "schedulers_of_optimizers_that_take_turns",
    "wgan_gp", "actor_and_critic", "average_of_the_generator")


def main() -> int:
    parser = shapes_test.arguments()
    parser.add_argument("--all", action="store_true")
    options = parser.parse_args()
    names = options.rows or (
        [name for name, row in rows.TABLE.items() if row.refused is None]
        if options.all else ROWS)
    bin_dir = pathlib.Path(os.environ["COHORT_BIN_DIR"])
    trials = [functools.partial(runner.Trial, row, 2, bin_dir, dies)
              for row in shapes_test.chosen(parser, names)
              for dies in ("forward", "backward", "step")]
    return shapes_test.report(trials, options)


if __name__ == "__main__":
    sys.exit(main())
