"""The shape of torchvision's references/segmentation/train.py: polynomial decay
after a warm-up, stepped with each batch; an auxiliary output whose head has a
greater rate; ignored pixels. Changed for Cohort: the lines with `job`."""

import torch
import torchvision
from torch import nn
from torch.optim import lr_scheduler

import cohort
from zoo.networks import comparable

STEPS, WARM_UP, RATE = 12, 3, 1e-3


def criterion(outputs, target):
    losses = {name: nn.functional.cross_entropy(x, target, ignore_index=255)
              for name, x in outputs.items()}
    return losses["out"] + 0.5 * losses["aux"]


def main(dataset, watch=lambda step, x, y: None, **join_options):
    """The model, after the run."""
    torch.manual_seed(0)
    model = comparable(torchvision.models.get_model(
        "deeplabv3_mobilenet_v3_large", weights=None, weights_backbone=None,
        num_classes=2, aux_loss=True))
    optimizer = torch.optim.SGD(
        [{"params": list(model.backbone.parameters())},
         {"params": list(model.classifier.parameters())},
         {"params": list(model.aux_classifier.parameters()), "lr": 10 * RATE}],
        lr=RATE, momentum=0.9, weight_decay=1e-4)
    scheduler = lr_scheduler.SequentialLR(optimizer, [
        lr_scheduler.LinearLR(optimizer, 0.1, total_iters=WARM_UP),
        lr_scheduler.PolynomialLR(optimizer, STEPS - WARM_UP, power=0.9)], [WARM_UP])
    job = cohort.join(model, optimizer, **join_options)
    for image, target in job.data(dataset, batch_size=4, shuffle=False):
        loss = criterion(model(image), target)
        job.backward(loss, weight=(target != 255).sum())
        watch(job.step_number, image, target)
        job.step()
        scheduler.step()
    return (model,)
