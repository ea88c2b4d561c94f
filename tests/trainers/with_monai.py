"""MONAI's SupervisedTrainer, on ignite's engine, with random transforms, which have
separate generators. Changed for Cohort: the update of an iteration, the loader, and
whence the transforms have their seed."""

import monai.data
import monai.networks.nets
import monai.transforms
import torch
from monai.engines import SupervisedTrainer
from monai.utils import CommonKeys
from torch import nn

import cohort


class Seeded(monai.data.Dataset):
    """Its transforms draw what the run's seed gives for the sample, as the job
    seeds torch's generator before each."""

    def _transform(self, index):
        self.transform.set_random_state(seed=int(torch.randint(2 ** 31, ())))
        return super()._transform(index)


TRANSFORM = monai.transforms.Compose([
    monai.transforms.RandFlipd(("image", "label"), prob=0.5, spatial_axis=1),
    monai.transforms.RandGaussianNoised(("image",), prob=0.5, std=0.1)])


def network():
    torch.manual_seed(0)
    return monai.networks.nets.UNet(
        2, 1, 2, channels=(4, 8), strides=(2,), act="GELU", norm="BATCH")


def main(samples, after_backward=lambda step: None, transform=TRANSFORM,
         **join_options):
    """The model, after the run."""
    model = network()
    job = cohort.join(model, torch.optim.SGD(model.parameters(), lr=0.05),
                      **join_options)
    criterion = nn.CrossEntropyLoss()

    def update(engine, batch):
        x, y = batch[CommonKeys.IMAGE], batch[CommonKeys.LABEL]
        engine.network.train()
        predicted = engine.network(x.as_tensor())
        loss = criterion(predicted, y.as_tensor())
        job.backward(loss)
        after_backward(job.step_number)
        job.step()
        return {CommonKeys.PRED: predicted.detach(), CommonKeys.LOSS: float(loss)}

    # The run is one epoch of ignite's; its length is the server's.
    SupervisedTrainer(
        device=torch.device("cpu"), max_epochs=1, network=model,
        train_data_loader=job.data(
            Seeded(samples, transform), batch_size=4, shuffle=False,
            collate_fn=monai.data.list_data_collate),
        optimizer=None, loss_function=criterion, iteration_update=update).run()
    return model
