"""Is a passage found by its document's embedding, wherever in the document it stands?

    python -m benchmarks.convert_depth MODEL --text books.jsonl.xz --lengths 1024,4096

MODEL is the folder of a BERT-like encoder of sentences. Texts (the field `text` of JSON lines) are
cut into documents of each length; the queries are passages of 64 tokens at ten depths of every
document. Mean-pooled embeddings are compared by cosine; a passage is found if its own document is
the nearest of all. Contestants: the original, which reads the first tokens alone; the mean of its
embeddings of all chunks; and the converted model, with the position table copied, interpolated or
spread. Records are appended to --out.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from linformer_kit.convert import convert
from linformer_kit.convert.teacher import load_teacher
from linformer_kit.measure.machine import describe
from linformer_kit.measure.records import RecordFile
from linformer_kit.models import LinformerModel

from .convert_text import texts_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Embed = Callable[[Tensor], Tensor]

DEPTHS, PASSAGE = 10, 64


class Reader:
    """Embeds rows of tokens: the mean of the hidden states of [CLS], the tokens and [SEP]."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model = model
        self.ends = tokenizer.cls_token_id, tokenizer.sep_token_id

    @torch.inference_mode()
    def __call__(self, tokens: Tensor) -> Tensor:
        first, last = (torch.tensor([end]) for end in self.ends)
        ids = torch.cat([first, tokens, last])[None]
        return F.normalize(self.model(ids).last_hidden_state[0].mean(0), dim=0)


def contestants(teacher: Any, tokenizer: Any, length: int, given: Any) -> dict[str, Embed]:
    """What embeds a document of this length."""
    original = Reader(teacher, tokenizer)
    reads = teacher.config.max_position_embeddings - 2

    def chunks(tokens: Tensor) -> Tensor:
        parts = [original(part) * len(part) for part in tokens.split(reads)]
        return F.normalize(torch.stack(parts).sum(0), dim=0)

    found: dict[str, Embed] = {"truncated": lambda tokens: original(tokens[:reads])}
    found["mean of chunks"] = chunks
    for positions in given.positions.split(","):
        student = convert(
            teacher,
            max_length=max(length + 2, reads + 2),
            k=given.k,
            window=given.window,
            positions=positions,
        )
        found[f"converted, {positions}"] = Reader(student.eval(), tokenizer)
    for folder in given.folders:
        model = LinformerModel.from_pretrained(folder, local_files_only=True)
        found[folder.name] = Reader(model.eval(), tokenizer)
    return found


def found_by_depth(embed: Embed, query: Embed, documents: list[Tensor]) -> list[float]:
    """The share of documents whose passage finds them, for each depth."""
    vectors = torch.stack([embed(tokens) for tokens in documents])
    shares = []
    for depth in range(DEPTHS):
        start = (len(documents[0]) - PASSAGE) * depth // (DEPTHS - 1)
        asked = torch.stack([query(tokens[start : start + PASSAGE]) for tokens in documents])
        nearest = (asked @ vectors.T).argmax(1)
        shares.append(float((nearest == torch.arange(len(documents))).float().mean()))
    return shares


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, nargs="+", required=True)
    parser.add_argument("--lengths", default="1024,2048,4096")
    parser.add_argument("--documents", type=int, default=32)
    parser.add_argument("--k", type=int, default=128)
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--positions", default="copy,interpolate,spread")
    parser.add_argument("--folders", type=Path, nargs="*", default=[], help="of converted models")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("convert-depth.jsonl"))
    return parser


def main() -> None:
    given = parser().parse_args()
    torch.set_num_threads(given.threads)
    teacher, tokenizer = load_teacher(str(given.model))
    rows = [
        torch.tensor(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
        for path in given.text
        for text in texts_of(path)
    ]
    machine = describe(seed=0, threads=given.threads)
    with RecordFile(given.out) as file:
        for length in map(int, given.lengths.split(",")):
            cut = [part for row in rows for part in row.split(length) if len(part) == length]
            documents = cut[:: max(1, len(cut) // given.documents)][: given.documents]
            query = Reader(teacher, tokenizer)
            for name, embed in contestants(teacher, tokenizer, length, given).items():
                shares = found_by_depth(embed, query, documents)
                found = {
                    "length": length,
                    "contestant": name,
                    "documents": len(documents),
                    "found": sum(shares) / DEPTHS,
                    "by_depth": shares,
                }
                file.append({"bench": "convert-depth"} | found | {"machine": machine})
                print(found, flush=True)


if __name__ == "__main__":
    main()
