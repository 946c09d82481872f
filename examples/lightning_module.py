"""Lightning: the loss is a part of the module, so that checkpoints hold its proxies and its random stream."""

import sys
import tempfile
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

from data import CLASSES, DIM, network, recall, samples
from dmlrepro.losses.nivmf import ProbabilisticProxyLoss
from dmlrepro.losses.recommended import clip_gradients
from dmlrepro.samplers import shuffled

try:
    import lightning
except ImportError:
    sys.exit("this example needs lightning: pip install lightning")


class Embedding(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = network()
        self.loss = ProbabilisticProxyLoss(CLASSES, DIM, "el_nivmf")

    def forward(self, images):
        return self.net(images)

    def training_step(self, batch, _):
        images, labels = batch
        return self.loss(self.net(images), labels)

    def configure_optimizers(self):
        return torch.optim.AdamW([{"params": self.net.parameters()}, *self.loss.parameter_groups(lr=1e-3)], lr=1e-3)

    def on_before_optimizer_step(self, optimizer):
        clip_gradients(optimizer)  # where the loss recommends it, as PFML does


def main() -> None:
    x, y, _, _ = samples()
    batches = shuffled(len(y), 32, num_batches=100, generator=torch.Generator().manual_seed(0))
    loader = DataLoader(TensorDataset(x, y), batch_sampler=batches.lists())
    module = Embedding()
    print(f"untrained R@1 {recall(module):.3f}")
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", enable_checkpointing=False, **quiet)
    trainer.fit(module, loader)
    print(f"Lightning R@1 {recall(module):.3f}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "module.ckpt"
        trainer.save_checkpoint(path)
        restored = Embedding.load_from_checkpoint(path, map_location="cpu")
    same = module.loss(module(x), y) == restored.loss(restored(x), y)  # the samples that it draws are the same too
    print(f"the restored module continues with the same numbers: {'yes' if same else 'no'}")


if __name__ == "__main__":
    main()
