"""The shape of timm's train.py: its optimizer, a scheduler that counts updates,
and an average of the weights. Changed for Cohort: the lines with `job`; the rate
is written before the step that it is for."""

import timm
import timm.optim
import timm.scheduler
import timm.utils
import torch
from torch import nn

import cohort
from zoo.networks import comparable

EPOCHS, UPDATES = 3, 4


def parts():
    """The model, its optimizer, the scheduler, and the average of the weights."""
    torch.manual_seed(0)
    model = comparable(timm.create_model("lcnet_035", num_classes=2))
    optimizer = timm.optim.create_optimizer_v2(
        model, opt="momentum", lr=0.002, momentum=0.9, weight_decay=1e-3)
    scheduler, _ = timm.scheduler.create_scheduler_v2(
        optimizer, sched="cosine", num_epochs=EPOCHS, warmup_epochs=1,
        warmup_lr=0.0005, min_lr=0.0001, step_on_epochs=False,
        updates_per_epoch=UPDATES)
    return model, optimizer, scheduler, timm.utils.ModelEmaV3(model, decay=0.9)


def main(dataset, after_backward=lambda step: None, averages=True, **join_options):
    """The model and the average, after the run. The average is this process's: to
    outlast it, use the server's --ema_decay."""
    model, optimizer, scheduler, average = parts()
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    job = cohort.join(model, optimizer, **join_options)
    if averages:
        job.after_step(lambda: average.update(model))
    for x, y in job.data(dataset, batch_size=4, shuffle=False):
        scheduler.step_update(num_updates=job.step_number)
        loss = criterion(model(x), y)
        job.backward(loss)
        after_backward(job.step_number)
        job.step()
    return model, average
