"""Trains a small U-Net on discs, with its loss function, in bfloat16."""

import torch
from torch import nn
import torch.nn.functional as F


class Discs(torch.utils.data.Dataset):
    """Images [3, 24, 24] with a disc, and its mask; the rim is 255, ignored."""

    def __init__(self, size, seed):
        generator = torch.Generator().manual_seed(seed)
        centres = torch.randint(6, 18, (size, 2, 1, 1), generator=generator)
        radii = torch.randint(3, 6, (size, 1, 1), generator=generator)
        grid = torch.stack(torch.meshgrid(torch.arange(24), torch.arange(24),
                                          indexing="ij"))
        distance = (grid - centres).float().norm(dim=1)
        self.masks = (distance < radii).long()
        self.masks[(distance - radii).abs() < 0.5] = 255
        self.images = (distance < radii).float()[:, None] + 0.3 * torch.randn(
            size, 3, 24, 24, generator=generator)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image, mask = self.images[index], self.masks[index]
        if torch.rand(()) < 0.5:
            image, mask = image.flip(-1), mask.flip(-1)
        return image, mask


def double(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs), nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs), nn.ReLU())


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2 = double(3, 8), double(8, 16)
        self.up = double(24, 8)
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x):
        wide = self.down1(x)
        deep = self.down2(F.max_pool2d(wide, 2))
        deep = F.interpolate(deep, scale_factor=2.0)
        return self.head(self.up(torch.cat([wide, deep], 1)))


def loss_of(logits, masks):
    """Cross-entropy and Dice over the valid pixels."""
    valid = masks != 255
    share = logits.softmax(1)[:, 1] * valid
    target = (masks == 1).float()
    dice = 1 - (2 * (share * target).sum() + 1) / (share.sum() + target.sum() + 1)
    return F.cross_entropy(logits, masks, ignore_index=255) + dice


def main():
    torch.manual_seed(0)
    model = UNet()
    plain = [p for p in model.parameters() if p.dim() < 2]
    head = [model.head.weight]
    body = [p for p in model.parameters()
            if p.dim() >= 2 and p is not model.head.weight]
    optimizer = torch.optim.AdamW([
        {"params": body, "weight_decay": 0.01},
        {"params": plain, "weight_decay": 0.0},
        {"params": head, "lr": 0.02, "weight_decay": 0.01}], lr=0.002)
    epochs = 6
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    loader = torch.utils.data.DataLoader(Discs(96, 1), batch_size=4, shuffle=True)

    for epoch in range(epochs):
        model.train()
        for images, masks in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(images)
            loss = loss_of(logits.float(), masks)
            loss.backward()
            optimizer.step()
        scheduler.step()

    model.eval()
    test = Discs(32, 2)
    with torch.no_grad():
        found, masks = model(test.images).argmax(1), test.masks
    valid = masks != 255
    both = ((found == 1) & (masks == 1) & valid).sum()
    either = (((found == 1) | (masks == 1)) & valid).sum()
    print(f"IoU {100 * both / either:.1f} %")
    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
