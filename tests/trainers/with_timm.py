"""The shape of timm's train.py: its optimizer, a scheduler that counts updates,
mixup and cutmix, and an average of the weights. Changed for Cohort: the lines with
`job`; the rate is written before the step that it is for."""

import timm
import timm.data
import timm.loss
import timm.optim
import timm.scheduler
import timm.utils
import torch

import cohort
from zoo.networks import comparable

# It draws from NumPy's generator, which the job seeds by step and rank.
mixup = timm.data.Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1,
                        num_classes=2)


def main(dataset, watch=lambda step, x, y: None, **join_options):
    """The model and the average, after the run."""
    torch.manual_seed(0)
    model = comparable(timm.create_model("lcnet_035", num_classes=2))
    optimizer = timm.optim.create_optimizer_v2(
        model, opt="sgd", lr=0.002, momentum=0.9, weight_decay=1e-3)
    scheduler, _ = timm.scheduler.create_scheduler_v2(
        optimizer, sched="cosine", num_epochs=3, warmup_epochs=1, warmup_lr=5e-4,
        min_lr=1e-4, step_on_epochs=False, updates_per_epoch=4)
    average = timm.utils.ModelEmaV3(model, decay=0.9)
    criterion = timm.loss.SoftTargetCrossEntropy()
    job = cohort.join(model, optimizer, keep=[average], **join_options)
    for x, y in job.data(dataset, batch_size=4, shuffle=False):
        scheduler.step_update(job.step_number)
        x, y = mixup(x, y)
        job.backward(criterion(model(x), y))
        watch(job.step_number, x, y)
        job.step()
        average.update(model)
    return model, average
