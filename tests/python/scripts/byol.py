"""BYOL: a learner that holds its target encoder, updated after the step by new
tensors in `data`."""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def mlp(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 8, bias=False), nn.BatchNorm1d(8),
                         nn.SiLU(), nn.Linear(8, outputs, bias=False))


def distance(x, y):
    x, y = F.normalize(x, dim=-1), F.normalize(y, dim=-1)
    return 2 - 2 * (x * y).sum(dim=-1)


class Learner(nn.Module):
    def __init__(self, net, decay=0.9):
        super().__init__()
        self.decay = decay
        self.online_encoder = nn.Sequential(net, mlp(8, 4))
        self.online_predictor = mlp(4, 4)
        self.target_encoder = copy.deepcopy(self.online_encoder)
        for parameter in self.target_encoder.parameters():
            parameter.requires_grad = False

    def update_moving_average(self):
        for new, old in zip(self.online_encoder.parameters(),
                            self.target_encoder.parameters()):
            old.data = old.data * self.decay + (1 - self.decay) * new.data

    def forward(self, x):
        one, two = x * 0.9, x.flip(3) + 0.1
        pred_one = self.online_predictor(self.online_encoder(one))
        pred_two = self.online_predictor(self.online_encoder(two))
        with torch.no_grad():
            target_one = self.target_encoder(one).detach()
            target_two = self.target_encoder(two).detach()
        return (distance(pred_one, target_two) + distance(pred_two, target_one)).mean()


def main():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.SiLU(),
                        nn.AdaptiveAvgPool2d(1), nn.Flatten())
    learner = Learner(net)
    opt = torch.optim.Adam(learner.parameters(), lr=3e-3)
    dataset = TensorDataset(torch.randn(44, 3, 6, 6))
    loader = DataLoader(dataset, batch_size=4, shuffle=True)

    for _ in range(3):
        for images, in loader:
            loss = learner(images)
            opt.zero_grad()
            loss.backward()
            opt.step()
            learner.update_moving_average()
    torch.save(learner.state_dict(), "improved-net.pt")


if __name__ == "__main__":
    main()
