"""PointNet++: rates and the momentum of batch norm by epoch, points that are turned
by random angles in the loop, a weighted loss beside a regulariser, sums of losses."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, CLASSES = 4, 3


def rotate_point_cloud_z(points):
    turned = points.clone()
    for n, angle in enumerate(torch.rand(len(points)) * 2 * math.pi):
        c, s = math.cos(angle), math.sin(angle)
        turned[n, :, :2] = points[n, :, :2] @ points.new_tensor([[c, s], [-s, c]])
    return turned


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv1d(3, 8, 1, bias=False), nn.BatchNorm1d(8)
        self.conv2, self.bn2 = nn.Conv1d(16, 8, 1, bias=False), nn.BatchNorm1d(8)
        self.turn, self.head = nn.Linear(8, 9), nn.Conv1d(8, CLASSES, 1)

    def forward(self, x):
        x = F.silu(self.bn1(self.conv1(x)))
        whole = x.logsumexp(2)
        x = torch.cat([x, whole[:, :, None].expand_as(x)], 1)
        x = self.head(F.silu(self.bn2(self.conv2(x))))
        return F.log_softmax(x.transpose(2, 1), dim=-1), self.turn(whole).view(-1, 3, 3)


def criterion(pred, target, trans, weight):
    unit = torch.eye(3, dtype=trans.dtype)
    far = torch.norm(trans @ trans.transpose(2, 1) - unit, dim=(1, 2)).mean()
    loss = F.nll_loss(pred, target, weight=weight)
    return loss + 0.001 * far


def main():
    torch.manual_seed(0)
    labels = torch.randint(0, CLASSES, (44, 10))
    dataset = TensorDataset(torch.randn(44, 10, 3), labels)
    weights = torch.bincount(labels.flatten()).max() / torch.bincount(labels.flatten())
    classifier = PointNet()
    optimizer = torch.optim.Adam(classifier.parameters(), lr=0.003, weight_decay=1e-4)
    loader = DataLoader(dataset, batch_size=4, shuffle=True)

    for epoch in range(EPOCHS):
        for group in optimizer.param_groups:
            group["lr"] = max(0.003 * 0.7 ** (epoch // 2), 1e-5)
        momentum = max(0.1 * 0.5 ** (epoch // 2), 0.01)
        for module in classifier.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.momentum = momentum
        classifier.train()
        loss_sum = 0
        for points, target in loader:
            optimizer.zero_grad()
            points = rotate_point_cloud_z(points).transpose(2, 1)
            pred, trans = classifier(points)
            pred, target = pred.reshape(-1, CLASSES), target.view(-1)
            loss = criterion(pred, target, trans, weights)
            loss.backward()
            optimizer.step()
            loss_sum += loss.item()
        print(f"mean loss {loss_sum / len(loader):.4f}")
        torch.save({"epoch": epoch, "model_state_dict": classifier.state_dict()},
                   "model.pt")


if __name__ == "__main__":
    main()
