"""PSPNet: a main and an auxiliary loss over the pixels that are not ignored, ten
times the rate for the new layers, a rate that is set after each iteration."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

IGNORE, EPOCHS, CLASSES = 255, 2, 3


class Scenes(Dataset):
    def __init__(self):
        self.images = torch.randn(44, 3, 6, 6)
        self.masks = torch.randint(0, CLASSES, (44, 6, 6))
        for n, mask in enumerate(self.masks):
            mask[:n % 6] = IGNORE

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], self.masks[index]


def layer(inputs):
    return nn.Sequential(nn.Conv2d(inputs, 8, 3, padding=1, bias=False),
                         nn.BatchNorm2d(8), nn.SiLU())


class PSPNet(nn.Module):
    def __init__(self, criterion):
        super().__init__()
        self.criterion = criterion
        self.layer0, self.layer1 = layer(3), layer(8)
        self.ppm = nn.Sequential(nn.AdaptiveAvgPool2d(2), layer(8))
        self.cls = nn.Sequential(layer(16), nn.Dropout2d(0), nn.Conv2d(8, CLASSES, 1))
        self.aux = nn.Sequential(layer(8), nn.Conv2d(8, CLASSES, 1))

    def forward(self, x, y=None):
        middle = self.layer0(x)
        deep = self.layer1(middle)
        wide = nn.functional.interpolate(self.ppm(deep), size=6, mode="bilinear",
                                         align_corners=True)
        out = self.cls(torch.cat([deep, wide], 1))
        if not self.training:
            return out
        return out.max(1)[1], self.criterion(out, y), self.criterion(
            self.aux(middle), y)


def main():
    torch.manual_seed(0)
    model = PSPNet(nn.CrossEntropyLoss(ignore_index=IGNORE))
    old, new = [model.layer0, model.layer1], [model.ppm, model.cls, model.aux]
    optimizer = torch.optim.SGD(
        [{"params": part.parameters(), "lr": 0.01 * (1 if part in old else 10)}
         for part in old + new], lr=0.01, momentum=0.9, weight_decay=1e-4)
    loader = DataLoader(Scenes(), batch_size=4, shuffle=True)

    for epoch in range(EPOCHS):
        model.train()
        right = count = 0
        max_iter = EPOCHS * len(loader)
        for i, (image, target) in enumerate(loader):
            output, main_loss, aux_loss = model(image, target)
            main_loss, aux_loss = main_loss.mean(), aux_loss.mean()
            loss = main_loss + 0.4 * aux_loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += (output == target).sum()
            count += (target != IGNORE).sum()
            current_iter = epoch * len(loader) + i + 1
            rate = 0.01 * (1 - current_iter / max_iter) ** 0.9
            for index, group in enumerate(optimizer.param_groups):
                group["lr"] = rate * (1 if index < len(old) else 10)
        print(f"accuracy {right / count:.3f}")
        torch.save({"epoch": epoch + 1, "state_dict": model.state_dict(),
                    "optimizer": optimizer.state_dict()}, f"train_epoch_{epoch}.pt")


if __name__ == "__main__":
    main()
