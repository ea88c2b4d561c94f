"""Replace this by your script. It trains on random images and needs no data."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import cohort

torch.manual_seed(1)
images = torch.randn(512, 3, 32, 32)
dataset = TensorDataset(images, (images.mean((1, 2, 3)) > 0).long())
model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(),
                      nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
job = cohort.join(model, optimizer)
data = job.data(dataset, batch_size=32, num_workers=1)
for epoch in job.epochs():
    for x, y in data:
        loss = nn.functional.cross_entropy(model(x), y)
        job.backward(loss)
        job.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    scheduler.step()
