"""ImageNet's main.py: meters, a schedule by epoch, a validation after each epoch, the
best checkpoint on rank 0, and resuming."""

import os
import shutil

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 3
RANK = int(os.environ.get("RANK", "0"))


class AverageMeter:
    def __init__(self):
        self.sum = self.count = 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n
        self.avg = self.sum / self.count


def train(loader, model, criterion, optimizer):
    losses, top1 = AverageMeter(), AverageMeter()
    model.train()
    for i, (images, target) in enumerate(loader):
        output = model(images)
        loss = criterion(output, target)
        losses.update(loss.item(), images.size(0))
        top1.update((output.argmax(1) == target).double().mean(), images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 2 == 0:
            print(f"[{i}/{len(loader)}] loss {losses.avg:.4f} top1 {top1.avg:.2f}")


def validate(loader, model, criterion):
    losses = AverageMeter()
    model.eval()
    with torch.no_grad():
        for images, target in loader:
            losses.update(criterion(model(images), target).item(), images.size(0))
    return losses.avg


def save_checkpoint(state, is_best):
    torch.save(state, "checkpoint.pt")
    if is_best:
        shutil.copyfile("checkpoint.pt", "model_best.pt")


def main():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.SiLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
    train_set = TensorDataset(torch.randn(44, 3, 6, 6), torch.randint(0, 3, (44,)))
    val_set = TensorDataset(torch.randn(20, 3, 6, 6), torch.randint(0, 3, (20,)))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9,
                                weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    start_epoch, best_loss = 0, float("inf")
    if os.path.isfile("resume.pt"):
        checkpoint = torch.load("resume.pt")
        start_epoch, best_loss = checkpoint["epoch"], checkpoint["best_loss"]
        model.load_state_dict(checkpoint["state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
    train_loader = DataLoader(train_set, batch_size=4, shuffle=True, num_workers=2)
    val_loader = DataLoader(val_set, batch_size=8, shuffle=False)

    for epoch in range(start_epoch, EPOCHS):
        train(train_loader, model, criterion, optimizer)
        loss = validate(val_loader, model, criterion)
        scheduler.step()
        is_best = loss < best_loss
        best_loss = min(loss, best_loss)
        if RANK == 0:
            save_checkpoint({
                "epoch": epoch + 1, "state_dict": model.state_dict(),
                "best_loss": best_loss, "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict()}, is_best)


if __name__ == "__main__":
    main()
