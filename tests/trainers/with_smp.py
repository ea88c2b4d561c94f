"""segmentation-models-pytorch with its losses: focal, a mean over pixels, stays;
Dice, which is over the whole batch, is made of sums over the cohort."""

import segmentation_models_pytorch as smp
import torch

import cohort
from zoo.networks import comparable


def dice(logits, masks, total=lambda tensor: tensor):
    """smp.losses.DiceLoss("binary"); `total` is job.sum."""
    p = torch.nn.functional.logsigmoid(logits).exp()
    both, either = total((p * masks).sum()), total((p + masks).sum())
    return 1 - 2 * both / either.clamp(min=1e-7)


def main(dataset, watch=lambda step, x, y: None, **join_options):
    """The model, after the run."""
    torch.manual_seed(0)
    model = comparable(smp.Unet("resnet18", encoder_weights=None, encoder_depth=3,
                                decoder_channels=(16, 8, 8), classes=1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    focal = smp.losses.FocalLoss("binary")
    job = cohort.join(model, optimizer, **join_options)
    for images, masks in job.data(dataset, batch_size=4, shuffle=False):
        logits = model(images)
        job.backward(focal(logits, masks) + dice(logits, masks, job.sum))
        watch(job.step_number, images, masks)
        job.step()
    return (model,)
