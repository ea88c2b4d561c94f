"""A Lightning module; with Cohort only the Trainer's strategy is another."""

import lightning.pytorch as pl
import torch
from torch import nn

from networks import Shapes, three_batch_norms


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = three_batch_norms(dropout=0.0)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x.to(self.dtype)), y)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("score", nn.functional.cross_entropy(self.net(x.to(self.dtype)), y))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def loader(samples, batch_size):
    return torch.utils.data.DataLoader(Shapes(samples), batch_size)


def main(strategy="auto", batch_size=8, epochs=3, module=Module, callbacks=(),
         samples=44, **options):
    """The Trainer, and its module, after the run."""
    torch.manual_seed(0)
    network = module()
    trainer = pl.Trainer(
        strategy=strategy, max_epochs=epochs, accelerator="cpu",
        callbacks=list(callbacks), **{
            "devices": 1, "logger": False, "enable_checkpointing": False,
            "enable_progress_bar": False, "enable_model_summary": False, **options})
    trainer.fit(network, loader(samples, batch_size), loader(16, 16))
    return trainer, network


if __name__ == "__main__":
    import cohort.lightning
    main(cohort.lightning.CohortStrategy())
