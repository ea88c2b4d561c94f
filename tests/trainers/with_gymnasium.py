"""PPO on gymnasium's CartPole, with running normalisers of observations and returns.

A rollout depends on the seed, the environment's number and the step alone: its
environments are reset, and its actions drawn, from these. So a step that is repeated,
or a process that is replaced, collects the same samples. The rollouts of all workers
are gathered into one tensor, which is kept: for the steps until the next rollout it
is the data set, whose samples the server shuffles and shards.

    cohortctl run --workers=2 --epochs=100 --clip_norm=0.5 -- python with_gymnasium.py
"""

import gymnasium
import torch
from torch import nn

import cohort

# Columns of a sample: observation, action, its log probability, advantage, return.
COLUMNS = (4, 1, 1, 1, 1)
GAMMA, LAMBDA, CLIP = 0.99, 0.95, 0.2


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor, self.critic = (
            nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(),
                          nn.Linear(64, outputs)) for outputs in (2, 1))
        # Actions are drawn almost evenly at first.
        with torch.no_grad():
            self.actor[-1].weight.mul_(0.01)

    def forward(self, x):
        return torch.log_softmax(self.actor(x), -1), self.critic(x)[..., 0]


class Environment:
    """CartPole, and the random numbers that choose its actions."""

    def __init__(self, number):
        self._number = number
        self._game = gymnasium.make("CartPole-v1")

    def reset(self, seed, step):
        """From here on it depends on these alone."""
        seed = (seed * 1_000_003 + step) * 1009 + self._number
        self._chance = torch.Generator().manual_seed(seed)
        return self._game.reset(seed=seed)[0]

    def step(self, log_probabilities):
        """The next observation, the reward, whether the episode has ended, and the
        action."""
        drawn = torch.rand((), generator=self._chance, dtype=torch.float64)
        action = int(drawn < log_probabilities[1].exp())
        x, reward, ended, late, _ = self._game.step(action)
        if ended or late:
            x, _ = self._game.reset()
        return x, reward, ended or late, action


@torch.no_grad()
def rollout(policy, observations, returns, environments, seed, step, length):
    """Samples [environments * length, columns] of the policy in these environments.
    Adds them to both normalisers."""
    dtype = policy.critic[0].weight.dtype
    games = [environment.reset(seed, step) for environment in environments]
    rows, rewards, ended, values = [], [], [], []
    for _ in range(length + 1):
        x = torch.tensor([list(game) for game in games], dtype=dtype)
        observations.update(x)
        x = observations.normalize(x)
        log_p, value = policy(x)
        values.append(returns.denormalize(value))
        if len(values) > length:
            break
        taken = [environment.step(one) for environment, one in zip(environments, log_p)]
        games = [game for game, _, _, _ in taken]
        rewards.append(torch.tensor([reward for _, reward, _, _ in taken], dtype=dtype))
        ended.append(torch.tensor([end for _, _, end, _ in taken], dtype=dtype))
        action = torch.tensor([[action] for _, _, _, action in taken])
        rows.append(torch.cat((x, action.to(dtype), log_p.gather(1, action)), 1))
    # An episode that reaches its limit of 500 steps counts as ended.
    advantages, after = [], torch.zeros(len(environments), dtype=dtype)
    for t in reversed(range(length)):
        error = rewards[t] + GAMMA * (1 - ended[t]) * values[t + 1] - values[t]
        after = error + GAMMA * LAMBDA * (1 - ended[t]) * after
        advantages.insert(0, after)
    advantage = torch.stack(advantages, 1)
    target = advantage + torch.stack(values[:-1], 1)
    returns.update(target)
    # By environment, then by time.
    return torch.cat((torch.stack(rows, 1), advantage[..., None], target[..., None]),
                     2).flatten(0, 1)


def prepared(samples, returns):
    """Those of all workers, once the returns' numbers have moved."""
    x, action, log_p, advantage, target = samples.split(COLUMNS, 1)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    return torch.cat((x, action, log_p, advantage, returns.normalize(target)), 1)


def loss_of(policy, samples):
    x, action, before, advantage, target = samples.split(COLUMNS, 1)
    log_p, value = policy(x)
    ratio = (log_p.gather(1, action.long()) - before).exp()
    gain = torch.minimum(ratio * advantage,
                         ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
    entropy = -(log_p.exp() * log_p).sum(1)
    return ((value - target[:, 0]).square() / 2 - gain[:, 0] - 0.01 * entropy).mean()


def adam(policy):
    return torch.optim.Adam(policy.parameters(), lr=1e-3, eps=1e-5)


@torch.no_grad()
def score(policy, observations, episodes=20):
    """The mean reward of an episode, whose actions are the most probable ones."""
    game, total = gymnasium.make("CartPole-v1"), 0.0
    for seed in range(episodes):
        x, ended, late = game.reset(seed=seed)[0], False, False
        while not (ended or late):
            log_p, _ = policy(observations.normalize(torch.tensor(x)))
            x, reward, ended, late, _ = game.step(int(log_p.argmax()))
            total += reward
    return total / episodes


def main(seed=0, environments=8, length=128, epochs=4, batch_size=64,
         after_backward=lambda step: None, **join_options):
    """The policy and its normalisers, after the run.

    Args:
        environments: of all workers together.
        length: steps of a rollout in each.
        epochs: over a rollout.
        batch_size: samples of a worker in a step.
    """
    torch.manual_seed(seed)
    policy = Policy()
    observations, returns = cohort.RunningNormalizer(4), cohort.RunningNormalizer(())
    samples = torch.zeros(environments * length, sum(COLUMNS))
    job = cohort.join(policy, adam(policy), keep={
        "observations": observations, "returns": returns, "samples": samples},
        **join_options)
    data = job.data(range(len(samples)), batch_size=batch_size)
    own = []
    for numbers in data:
        step = job.step_number
        # By the number of the step, which a replacement has, too.
        if step % (epochs * len(data)) == 0:
            own = own or [Environment(number) for number in range(
                job.rank * environments // job.workers,
                (job.rank + 1) * environments // job.workers)]
            collected = job.gather(rollout(policy, observations, returns, own, seed,
                                           step, length))
            # Targets are normalised by numbers that have them, too.
            returns.sync()
            samples.copy_(prepared(collected, returns))
        job.backward(loss_of(policy, samples[numbers]))
        after_backward(step)
        job.step()
    return policy, observations, returns


if __name__ == "__main__":
    policy, observations, _ = main()
    print(f"mean reward of 20 episodes: {score(policy, observations):.1f}")
