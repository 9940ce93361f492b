"""A ViT and an nn.TransformerEncoder, trained on handwritten digits, with their attention swapped.

    python -m benchmarks.convert_images [--settings 16:4,8:4] [--seeds 0,1,2]

The images of scikit-learn's digits, 8 x 8, are read one pixel a token. Accuracy on a fifth of the
images of the trained model, after `linformerize`, and after `distill` on the training images.
Records are appended to --out.
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
import transformers
from sklearn.datasets import load_digits
from torch import Tensor, nn

from linformer_kit.convert import distill, linformerize
from linformer_kit.measure.machine import describe
from linformer_kit.measure.records import RecordFile

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZE, TOKENS = 8, 64
DIM, LAYERS, HEADS = 64, 3, 4


class VisionModel(nn.Module):
    """transformers' ViT, a patch a pixel."""

    max_length = TOKENS + 1

    def __init__(self) -> None:
        super().__init__()
        self.vit = transformers.ViTForImageClassification(
            transformers.ViTConfig(
                image_size=SIZE,
                patch_size=1,
                num_channels=1,
                hidden_size=DIM,
                num_hidden_layers=LAYERS,
                num_attention_heads=HEADS,
                intermediate_size=2 * DIM,
                num_labels=10,
            )
        )

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.vit(pixel_values=images[:, None]).logits
        return logits


class TorchModel(nn.Module):
    """nn.TransformerEncoder over pixels, and the mean of its outputs."""

    max_length = TOKENS

    def __init__(self) -> None:
        super().__init__()
        self.pixels = nn.Linear(1, DIM)
        self.positions = nn.Parameter(0.02 * torch.randn(TOKENS, DIM))
        layer = nn.TransformerEncoderLayer(DIM, HEADS, 2 * DIM, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, LAYERS)
        self.out = nn.Linear(DIM, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.pixels(images.flatten(1)[..., None]) + self.positions
        found: Tensor = self.out(self.encoder(x).mean(1))
        return found


MODELS = {"ViT": VisionModel, "nn.TransformerEncoder": TorchModel}


def digits(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images and labels to train and to test with."""
    images, labels = map(torch.from_numpy, load_digits(return_X_y=True))
    images = images.float().view(-1, SIZE, SIZE) / 8 - 1
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    test, train = order[: len(order) // 5], order[len(order) // 5 :]
    return images[train], labels[train], images[test], labels[test]


def train(model: nn.Module, images: Tensor, labels: Tensor, epochs: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 1e-3, epochs=epochs, steps_per_epoch=-(-len(images) // 32)
    )
    for _ in range(epochs):
        for chosen in torch.randperm(len(images)).split(32):
            optimizer.zero_grad()
            F.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()
            schedule.step()


@torch.inference_mode()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    model.eval()
    found = torch.cat([model(part).argmax(-1) for part in images.split(64)])
    return float((found == labels).float().mean())


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--settings", default="16:8,8:4,4:2", help="k:window, ...")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--steps", type=int, default=100, help="of distillation")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("convert-images.jsonl"))
    return parser


def stages(name: str, seed: int, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The accuracy of a model as trained, and after conversion and distillation by each setting."""
    images, labels, *test = digits(seed)
    torch.manual_seed(seed)
    original: Any = MODELS[name]()
    train(original, images, labels, given.epochs)
    yield {"stage": "original", "accuracy": accuracy(original, *test)}
    for pair in given.settings.split(","):
        k, window = map(int, pair.split(":"))
        setting = {"k": k, "window": window}
        student = linformerize(
            copy.deepcopy(original), max_length=original.max_length, k=k, window=window
        )
        yield {"stage": "converted", "accuracy": accuracy(student, *test)} | setting
        batches = list(images[torch.randperm(len(images))].split(32))
        distill(student, original, batches, steps=given.steps)
        trained = setting | {"steps": given.steps}
        yield {"stage": "distilled", "accuracy": accuracy(student, *test)} | trained


def main() -> None:
    given = parser().parse_args()
    torch.set_num_threads(given.threads)
    with RecordFile(given.out) as file:
        for seed in map(int, given.seeds.split(",")):
            machine = describe(seed=seed, threads=given.threads)
            for name in given.models.split(","):
                for found in stages(name, seed, given):
                    line = {"bench": "convert-images", "model": name} | found
                    file.append(line | {"machine": machine})
                    print(seed, name, found, flush=True)


if __name__ == "__main__":
    main()
