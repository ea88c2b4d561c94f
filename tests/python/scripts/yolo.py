"""A loop like YOLOv5's: three groups, a warm-up of rates and momentum by the batch's
number, a schedule by epoch, accumulated batches, an average whose decay grows, a
loss of several means times the batch size, and the best file by the average."""

import copy
import math
import os

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, BATCH, ACCUMULATE, WARM = 3, 4, 2, 7
RANK = int(os.getenv("RANK", "-1"))


class ModelEMA:
    def __init__(self, model):
        self.ema = copy.deepcopy(model).eval()
        self.updates = 0
        for parameter in self.ema.parameters():
            parameter.requires_grad_(False)

    def update(self, model):
        self.updates += 1
        decay = 0.9 * (1 - math.exp(-self.updates / 4))
        state = model.state_dict()
        for name, value in self.ema.state_dict().items():
            if value.dtype.is_floating_point:
                value *= decay
                value += (1 - decay) * state[name].detach()


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8),
                          nn.SiLU(), nn.Conv2d(8, 2, 1))
    dataset = TensorDataset(torch.randn(40, 3, 6, 6), torch.rand(40, 1, 6, 6))
    optimizer = torch.optim.SGD([model[1].weight], lr=0.01, momentum=0.9,
                                nesterov=True)
    optimizer.add_param_group({"params": [model[0].weight, model[3].weight],
                               "weight_decay": 5e-4})
    optimizer.add_param_group({"params": [model[1].bias, model[3].bias]})
    lf = lambda epoch: (1 - epoch / EPOCHS) * 0.99 + 0.01
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_lambda=lf)
    ema, best = ModelEMA(model), math.inf
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True)
    val_images, val_targets = dataset[:12]

    for epoch in range(EPOCHS):
        model.train()
        mloss = torch.zeros(2)
        optimizer.zero_grad()
        for i, (images, targets) in enumerate(loader):
            ni = i + len(loader) * epoch
            if ni <= WARM:
                for j, group in enumerate(optimizer.param_groups):
                    start = 0.1 if j == 2 else 0.0
                    rate = group["initial_lr"] * lf(epoch)
                    group["lr"] = start + (rate - start) * ni / WARM
                    group["momentum"] = 0.8 + 0.1 * ni / WARM
            pred, found = model(images), targets > 0.5
            box = (pred[:, :1] - targets)[found].square().mean()
            obj = F.binary_cross_entropy_with_logits(pred[:, 1:], found.to(pred.dtype))
            loss = (0.5 * box + obj) * len(images)
            loss.backward()
            if (ni + 1) % ACCUMULATE == 0:
                optimizer.step()
                optimizer.zero_grad()
                ema.update(model)
            mloss = (mloss * i + torch.stack([box, obj]).detach()) / (i + 1)
        scheduler.step()
        if RANK in (-1, 0):
            with torch.no_grad():
                error = float(F.mse_loss(ema.ema(val_images)[:, :1], val_targets))
            state = {"epoch": epoch, "error": error, "model": model.state_dict(),
                     "ema": ema.ema.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, "last.pt")
            if error < best:
                best = error
                torch.save(state, "best.pt")


if __name__ == "__main__":
    main()
