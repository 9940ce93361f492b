"""Masked top-1 accuracy of a converted masked language model beside the original's.

    python -m benchmarks.convert_masked MODEL --vocabulary vocab.txt --test test.txt

MODEL is the folder of a masked language model, a line of the texts is one input, its tokens
separated by spaces. Every token of a test line is masked once, every seventh at a time. With
--steps the converted model is distilled on the lines of --train too. Records are appended to --out.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from linformer_kit.convert import convert, distill
from linformer_kit.convert.teacher import load_teacher
from linformer_kit.measure.machine import describe
from linformer_kit.measure.records import RecordFile

if TYPE_CHECKING:
    from torch import Tensor, nn

EVERY = 7  # a seventh of the tokens is masked at a time, about BERT's 15 %


def word_tokenizer(vocabulary: Path) -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens are the lines of a file; texts have spaces between them."""
    ids = {word: number for number, word in enumerate(vocabulary.read_text().split("\n")) if word}
    words = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        special_tokens=[(name, ids[name]) for name in ("[CLS]", "[SEP]")],
    )
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    return PreTrainedTokenizerFast(tokenizer_object=words, **names)


@torch.inference_mode()
def masked_top1(model: nn.Module, lines: list[str], tokenizer: Any) -> dict[str, int]:
    """How many tokens of the lines were asked for, and how many the model names first."""
    right = asked = 0
    for line in lines:
        ids = torch.tensor(tokenizer(line)["input_ids"])
        known = ids != tokenizer.unk_token_id
        passes = ids.repeat(EVERY, 1)
        hidden = (torch.arange(len(ids)) % EVERY == torch.arange(EVERY)[:, None]) & known
        hidden[:, 0] = hidden[:, -1] = False  # [CLS] and [SEP]
        logits = model(input_ids=passes.masked_fill(hidden, tokenizer.mask_token_id)).logits
        right += int((logits.argmax(-1) == passes)[hidden].sum())
        asked += int(hidden.sum())
    return {"right": right, "asked": asked}


def batches(lines: list[str], tokenizer: Any, size: int, seed: int) -> list[dict[str, Tensor]]:
    """Batches of lines in a random order, a seventh of their tokens masked as in the test."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(lines), generator=generator).tolist()
    found = []
    for start in range(0, len(order), size):
        chosen = [lines[place] for place in order[start : start + size]]
        batch = tokenizer(chosen, padding=True, return_tensors="pt")
        masked = torch.rand(batch["input_ids"].shape, generator=generator) < 1 / EVERY
        masked &= batch["attention_mask"].bool()
        masked[:, 0] = False
        ids = batch["input_ids"].masked_fill(masked, tokenizer.mask_token_id)
        found.append({"input_ids": ids, "attention_mask": batch["attention_mask"]})
    return found


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--vocabulary", type=Path, required=True, help="a token a line")
    parser.add_argument("--train", type=Path)
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--settings", default="32:8,16:8,16:4", help="k:window, ...")
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--projection", default="mean")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("convert-masked.jsonl"))
    return parser


def main() -> None:
    given = parser().parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(given.seed)
    tokenizer = word_tokenizer(given.vocabulary)
    teacher, _ = load_teacher(str(given.model))
    test = given.test.read_text().splitlines()
    train = given.train.read_text().splitlines() if given.train else []
    common = {"bench": "convert-masked", "model": given.model.name, "lines": len(test)}
    machine = describe(seed=given.seed, threads=given.threads)
    with RecordFile(given.out) as file:

        def record(stage: str, model: nn.Module, **setting: Any) -> None:
            found = masked_top1(model, test, tokenizer)
            top1 = found["right"] / found["asked"]
            file.append(
                common | {"stage": stage, "top1": top1} | found | setting | {"machine": machine}
            )
            print(stage, setting, found, f"{top1:.2%}", flush=True)

        record("original", teacher)
        for pair in given.settings.split(","):
            k, window = map(int, pair.split(":"))
            setting = {
                "k": k,
                "window": window,
                "max_length": given.max_length,
                "projection": given.projection,
            }
            student = convert(teacher, **setting)
            record("converted", student, **setting)
            if given.steps:
                data = batches(train, tokenizer, given.batch_size, given.seed)
                training = {"steps": given.steps, "lr": given.lr, "layers_first": 0.0}
                distill(student, teacher, data, **training)
                record("distilled", student, **setting, **training)


if __name__ == "__main__":
    main()
