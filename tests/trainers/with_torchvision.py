"""The shape of torchvision's references/segmentation/train.py: polynomial decay
after a warm-up, stepped with each batch; auxiliary outputs; ignored pixels. Changed
for Cohort: the lines with `job`."""

import torch
import torchvision
from torch import nn

import cohort
from zoo.networks import comparable

STEPS = 12


def network():
    torch.manual_seed(0)
    return comparable(torchvision.models.get_model(
        "lraspp_mobilenet_v3_large", weights=None, weights_backbone=None,
        num_classes=2))


def criterion(outputs, target):
    losses = {name: nn.functional.cross_entropy(x, target, ignore_index=255)
              for name, x in outputs.items()}
    return losses["out"] + 0.5 * losses.get("aux", 0)


def optimizer_of(model):
    groups = [{"params": list(model.backbone.parameters())},
              {"params": list(model.classifier.parameters()), "lr": 0.02}]
    optimizer = torch.optim.SGD(groups, lr=0.01, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler
    return optimizer, schedule.SequentialLR(optimizer, [
        schedule.LinearLR(optimizer, 0.1, total_iters=3),
        schedule.LambdaLR(optimizer, lambda step: (1 - step / STEPS) ** 0.9)], [3])


def main(dataset, after_backward=lambda step: None, **join_options):
    """The model, after the run."""
    model = network()
    optimizer, scheduler = optimizer_of(model)
    job = cohort.join(model, optimizer, **join_options)
    for image, target in job.data(dataset, batch_size=4, shuffle=False):
        loss = criterion(model(image), target)
        job.backward(loss, weight=(target != 255).sum())
        after_backward(job.step_number)
        job.step()
        scheduler.step()
    return model
