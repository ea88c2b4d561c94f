"""Trains a small ResNet on images of bars."""

import torch
from torch import nn


class Bars(torch.utils.data.Dataset):
    """Images [1, 16, 16] of a bright bar; its direction is the class."""

    def __init__(self, size, seed):
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(0, 2, (size,), generator=generator)
        self.rows = torch.randint(2, 14, (size,), generator=generator)
        self.images = 0.3 * torch.randn(size, 1, 16, 16, generator=generator)
        for image, label, row in zip(self.images, self.labels, self.rows):
            (image[0, row] if label else image[0, :, row]).add_(2)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride, bias=False),
            nn.BatchNorm2d(outputs))

    def forward(self, x):
        out = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, 1, 1, bias=False),
                                  nn.BatchNorm2d(8), nn.ReLU())
        self.blocks = nn.Sequential(Block(8, 8, 1), Block(8, 16, 2))
        self.fc = nn.Linear(16, 2)

    def forward(self, x):
        return self.fc(self.blocks(self.stem(x)).mean((2, 3)))


def main():
    torch.manual_seed(0)
    model = ResNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9,
                                weight_decay=5e-4)
    criterion = nn.CrossEntropyLoss()
    loader = torch.utils.data.DataLoader(Bars(256, 1), batch_size=16, shuffle=True)

    for epoch in range(4):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()

    model.eval()
    test = Bars(128, 2)
    with torch.no_grad():
        correct = (model(test.images).argmax(1) == test.labels).float().mean()
    print(f"accuracy {100 * correct:.1f} %")
    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
