"""MoCo: one module has the trained encoder, one that follows it in each pass, and a
queue of the keys of all processes with its pointer."""

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class MoCo(nn.Module):
    def __init__(self, encoder, dim, size, m=0.9, temperature=0.2):
        super().__init__()
        self.size, self.m, self.temperature = size, m, temperature
        self.encoder_q = encoder
        self.encoder_k = copy.deepcopy(encoder)
        for parameter in self.encoder_k.parameters():
            parameter.requires_grad = False
        self.register_buffer("queue", F.normalize(torch.randn(dim, size), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def update_key_encoder(self):
        for q, k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            k.data = k.data * self.m + q.data * (1.0 - self.m)

    @torch.no_grad()
    def enqueue(self, keys):
        keys = concat_all_gather(keys)
        at = int(self.queue_ptr)
        assert self.size % len(keys) == 0
        self.queue[:, at:at + len(keys)] = keys.T
        self.queue_ptr[0] = (at + len(keys)) % self.size

    def forward(self, im_q, im_k):
        q = F.normalize(self.encoder_q(im_q), dim=1)
        with torch.no_grad():
            self.update_key_encoder()
            k = F.normalize(self.encoder_k(im_k), dim=1)
        near = (q * k).sum(1, keepdim=True)
        far = q @ self.queue.clone().detach()
        logits = torch.cat([near, far], dim=1) / self.temperature
        self.enqueue(k)
        return logits, torch.zeros(len(logits), dtype=torch.long)


def concat_all_gather(tensor):
    return tensor


torch.manual_seed(0)
model = MoCo(nn.Sequential(
    nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.SiLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)), 4, 24)
optimizer = torch.optim.SGD(model.parameters(), 0.03, momentum=0.9, weight_decay=1e-4)
dataset = TensorDataset(torch.randn(40, 3, 6, 6))
loader = DataLoader(dataset, batch_size=4, shuffle=True, drop_last=True)

for epoch in range(3):
    for group in optimizer.param_groups:
        group["lr"] = 0.03 * 0.5 * (1 + math.cos(math.pi * epoch / 3))
    model.train()
    for images, in loader:
        output, target = model(images, images.flip(3) * 0.9)
        loss = F.cross_entropy(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save({"epoch": epoch + 1, "state_dict": model.state_dict()}, "checkpoint.pt")
