"""Rewards of with_gymnasium.py: two workers, and one process without Cohort.

    COHORT_BIN_DIR=build/release/bin \\
      PYTHONPATH=build/release/python-package:tests/integration:tests/python \\
      build/zoo/bin/python3 tests/trainers/rewards.py [--seeds=10] [--epochs=8,40]

Prints for each length of the training (epochs of 8 steps, four a rollout) the mean over
the seeds, with its interval of 95 % (Student's t), of the rewards of 20 episodes.
"""

import argparse
import math
import statistics

import torch

import with_gymnasium
from ranks import Server
from trainers_test import games_alone

# Student's t, 97.5 %, by the degrees of freedom.
T = {4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 14: 2.145, 19: 2.093}


def of_worker(_, address, seed):
    policy, observations, _ = with_gymnasium.main(
        seed, server=address, log_level="error", server_timeout=60)
    return with_gymnasium.score(policy, observations)


def of_one_process(seed, epochs):
    policy, observations, _ = games_alone(8 * epochs, seed, 8, 128, 4, 128, torch.float32)
    return with_gymnasium.score(policy, observations)


def of_two(seed, epochs):
    with Server(2, f"--epochs={epochs}", f"--seed={seed}") as server:
        first, second = server.call(of_worker, seed)
    assert first == second
    return first


def text(rewards):
    half = T[len(rewards) - 1] * statistics.stdev(rewards) / math.sqrt(len(rewards))
    return f"{statistics.mean(rewards):.0f} ± {half:.0f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, choices=[n + 1 for n in T])
    parser.add_argument("--epochs", default="8,40")
    options = parser.parse_args()
    for epochs in map(int, options.epochs.split(",")):
        pairs = [(of_two(seed, epochs), of_one_process(seed, epochs))
                 for seed in range(options.seeds)]
        two, one = zip(*pairs)
        print(f"{epochs} epochs: two workers {text(two)}, one process {text(one)}, "
              f"difference {text([a - b for a, b in pairs])}", flush=True)


if __name__ == "__main__":
    main()
