"""Mean teacher: a teacher in training mode that follows after the step with a decay
by a global counter, a rate by the batch's number, labels that are missing."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

NO_LABEL = -1
EPOCHS = 3
global_step = 0


class Images(Dataset):
    def __init__(self):
        self.images = torch.randn(44, 3, 6, 6)
        self.labels = torch.randint(0, 3, (44,))
        self.labels[::3] = NO_LABEL

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        views = [self.images[index] + 0.2 * torch.randn(3, 6, 6) for _ in range(2)]
        return views, self.labels[index]


def create_model(ema=False):
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.SiLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
    if ema:
        for parameter in model.parameters():
            parameter.detach_()
    return model


def update_ema_variables(model, ema_model, alpha, step):
    alpha = min(1 - 1 / (step + 1), alpha)
    for ema, parameter in zip(ema_model.parameters(), model.parameters()):
        ema.data.mul_(alpha).add_(parameter.data, alpha=1 - alpha)


def adjust_learning_rate(optimizer, epoch):
    for group in optimizer.param_groups:
        group["lr"] = 0.05 * min(1, epoch) * (math.cos(math.pi * epoch / 4) + 1) / 2


def main():
    global global_step
    torch.manual_seed(0)
    model, ema_model = create_model(), create_model(ema=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9,
                                weight_decay=1e-4, nesterov=True)
    loader = DataLoader(Images(), batch_size=4, shuffle=True)

    for epoch in range(EPOCHS):
        model.train()
        ema_model.train()
        for i, ((images, ema_images), target) in enumerate(loader):
            adjust_learning_rate(optimizer, epoch + i / len(loader))
            ema_logit = ema_model(ema_images).detach()
            logit = model(images)
            class_loss = F.cross_entropy(logit, target, reduction="sum",
                                         ignore_index=NO_LABEL) / len(target)
            weight = 5 * math.exp(-5 * (1 - min(epoch / 2, 1)) ** 2)
            consistency = F.mse_loss(logit.softmax(1), ema_logit.softmax(1))
            loss = class_loss + weight * consistency
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            global_step += 1
            update_ema_variables(model, ema_model, 0.9, global_step)
        state = {"epoch": epoch + 1, "state_dict": model.state_dict(),
                 "ema_state_dict": ema_model.state_dict(),
                 "optimizer": optimizer.state_dict()}
        torch.save(state, "checkpoint.pt")


if __name__ == "__main__":
    main()
