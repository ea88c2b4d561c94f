"""Finds dots in images of different sizes, from a stream of batches."""

import torch
from torch import nn


def stream(seed, batches):
    """Batches of 1 to 3 images of one size; sizes and numbers differ. Yields
    images [n, 1, h, w] and heat maps [n, 1, h, w], 1 at each dot."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(batches):
        n, h, w = (int(torch.randint(low, high, (), generator=generator))
                   for low, high in ((1, 4), (16, 28), (16, 28)))
        heat = (torch.rand(n, 1, h, w, generator=generator) > 0.99).float()
        images = nn.functional.max_pool2d(heat, 3, 1, 1) + 0.2 * torch.randn(
            n, 1, h, w, generator=generator)
        yield images, heat


class Detector(nn.Module):
    """A backbone with frozen batch norm, and a head with its own."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8),
            nn.ReLU())
        self.head = nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8),
            nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))
        for parameter in self.backbone[1].parameters():
            parameter.requires_grad_(False)

    def train(self, mode=True):
        super().train(mode)
        self.backbone[1].eval()
        return self

    def forward(self, images):
        return self.head(self.backbone(images))


def main():
    torch.manual_seed(0)
    model = Detector()
    optimizer = torch.optim.Adam(
        [p for p in model.parameters() if p.requires_grad], lr=0.01)
    loader = stream(1, 150)
    weight = torch.tensor(20.0)

    model.train()
    for images, heat in loader:
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(
            model(images), heat, pos_weight=weight)
        loss.backward()
        optimizer.step()

    model.eval()
    hits = dots = 0
    with torch.no_grad():
        for images, heat in stream(2, 20):
            found = model(images) > 0
            hits += int((found & (heat > 0)).sum())
            dots += int((heat > 0).sum())
    print(f"recall {100 * hits / dots:.1f} %")
    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
