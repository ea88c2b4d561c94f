"""MONAI's SupervisedTrainer, on ignite's engine, with random transforms, which have
separate generators. Changed for Cohort: the update of an iteration, the loader, and
how the transforms are seeded."""

import monai.data
import monai.losses
import monai.networks.nets
import monai.transforms
import torch
from monai.engines import SupervisedTrainer
from monai.utils import CommonKeys

import cohort


class Seeded(monai.data.Dataset):
    """Its transforms draw what the run's seed gives for the sample, as the job
    seeds torch's generator before each."""

    def _transform(self, index):
        self.transform.set_random_state(seed=int(torch.randint(2 ** 31, ())))
        return super()._transform(index)


transform = monai.transforms.Compose([
    monai.transforms.RandFlipd(("image", "label"), prob=0.5, spatial_axis=1),
    monai.transforms.RandGaussianNoised(("image",), prob=0.5, std=0.1)])


def main(samples, watch=lambda step, x, y: None, **join_options):
    """The model, after the run."""
    torch.manual_seed(0)
    model = monai.networks.nets.UNet(2, 1, 2, channels=(4, 8), strides=(2,),
                                     act="GELU", norm="BATCH")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-3)
    # Dice of each sample; with batch=True use job.sum, as with_smp.py does.
    criterion = monai.losses.DiceCELoss(to_onehot_y=True, softmax=True)
    job = cohort.join(model, optimizer, **join_options)

    def update(engine, batch):
        x, y = (batch[key].as_tensor() for key in (CommonKeys.IMAGE,
                                                   CommonKeys.LABEL))
        engine.network.train()
        predicted = engine.network(x)
        loss = criterion(predicted, y)
        job.backward(loss)
        watch(job.step_number, x, y)
        job.step()
        return {CommonKeys.PRED: predicted.detach(), CommonKeys.LOSS: loss.detach()}

    # The run is one epoch of ignite's; the server decides how long it is.
    SupervisedTrainer(
        device=torch.device("cpu"), max_epochs=1, network=model, optimizer=optimizer,
        loss_function=criterion, iteration_update=update, train_data_loader=job.data(
            Seeded(samples, transform), batch_size=4, shuffle=False,
            collate_fn=monai.data.list_data_collate)).run()
    return (model,)
