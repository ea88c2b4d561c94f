"""The shape of torchvision's references/classification/train.py: decay of the
weights without those of norms, a schedule of epochs after a warm-up, mixup and
cutmix in the loader, and an average of the weights and buffers. Changed for Cohort:
the lines with `job`."""

import torch
import torchvision
from torch.optim import lr_scheduler
from torchvision.ops._utils import split_normalization_params
from torchvision.transforms import v2

import cohort
from zoo.networks import comparable

mixup = v2.RandomChoice([v2.MixUp(alpha=0.2, num_classes=2),
                         v2.CutMix(alpha=1.0, num_classes=2)])


def main(dataset, watch=lambda step, x, y: None, **join_options):
    """The model and the average, after the run."""
    torch.manual_seed(0)
    model = comparable(torchvision.models.get_model(
        "mobilenet_v3_small", weights=None, num_classes=2))
    norms, others = split_normalization_params(model)
    optimizer = torch.optim.SGD(
        [{"params": norms, "weight_decay": 0.0}, {"params": others}],
        lr=0.005, momentum=0.9, weight_decay=1e-3)
    scheduler = lr_scheduler.SequentialLR(optimizer, [
        lr_scheduler.LinearLR(optimizer, 0.1, total_iters=1),
        lr_scheduler.CosineAnnealingLR(optimizer, T_max=2, eta_min=1e-4)], [1])
    average = torch.optim.swa_utils.AveragedModel(
        model, avg_fn=lambda old, new, count: 0.9 * old + 0.1 * new, use_buffers=True)
    criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    job = cohort.join(model, optimizer, keep=[average], **join_options)
    data = job.data(dataset, batch_size=4, shuffle=False, collate_fn=lambda batch:
                    mixup(*torch.utils.data.default_collate(batch)))
    for epoch in job.epochs():
        for x, y in data:
            step = job.step_number
            job.backward(criterion(model(x), y))
            watch(step, x, y)
            job.step()
            if step % 2 == 0:
                average.update_parameters(model)
                if epoch < 1:
                    # A copy until the warm-up is over.
                    average.n_averaged.fill_(0)
        scheduler.step()
    return model, average
