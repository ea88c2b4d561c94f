"""SimCLR: two views of each image, a loss over the pairs of a batch, and a
schedule by epoch that begins after the warm-up."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class TwoViews(Dataset):
    def __init__(self):
        self.images = torch.randn(44, 3, 6, 6)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        return [image + 0.3 * torch.randn(image.shape) for _ in range(2)], index


def info_nce_loss(features):
    half = len(features) // 2
    labels = torch.arange(half).repeat(2)
    labels = labels[None] == labels[:, None]
    features = F.normalize(features, dim=1)
    similarity = features @ features.T
    others = ~torch.eye(len(labels), dtype=torch.bool)
    labels = labels[others].view(len(labels), -1)
    similarity = similarity[others].view(len(labels), -1)
    positives = similarity[labels].view(len(labels), -1)
    negatives = similarity[~labels].view(len(labels), -1)
    logits = torch.cat([positives, negatives], dim=1) / 0.5
    return logits, torch.zeros(len(logits), dtype=torch.long)


def main():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.SiLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 4))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3)
    loader = DataLoader(TwoViews(), batch_size=4, shuffle=True)
    criterion = nn.CrossEntropyLoss()

    n_iter = 0
    for epoch in range(3):
        for images, _ in loader:
            images = torch.cat(images, dim=0)
            features = model(images)
            logits, labels = info_nce_loss(features)
            loss = criterion(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if n_iter % 4 == 0:
                print(f"perplexity {math.exp(loss.item()):.2f}")
            n_iter += 1
        if epoch >= 1:
            scheduler.step()
    torch.save({"epoch": 3, "state_dict": model.state_dict(),
                "optimizer": optimizer.state_dict()}, "checkpoint.pt")


if __name__ == "__main__":
    main()
