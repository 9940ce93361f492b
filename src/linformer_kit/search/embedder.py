"""Passages of documents as vectors, by any model folder of sentence-transformers or run.

The modules of sentence-transformers pool and normalise; texts are cut here, so that no token is
left out without being counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..artifact import digest
from ..data.collate import pad
from ..data.digest import TOKENIZER_FILE
from ..data.encode import encode_long
from ..data.overflow import overlapping
from ..data.tokenizer import frame_of
from ..errors import UserError, user_input
from ..models import LinformerConfig, LinformerForEmbedding
from ..models.load import architectures, check_safetensors, load_pretrained, load_tokenizer, quiet
from ..models.sentence_files import MODULES, are_of_model
from ..runs.folder import RunFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

PASSAGE = 256  # tokens of a passage, where the model reads as many
OVERLAP = 0.125
TOKENS_PER_BATCH = 16_384


class Passage(NamedTuple):
    """Characters `start` to `end` of a document, and its tokens in their frame."""

    start: int
    end: int
    ids: np.ndarray
    first: int  # of its tokens in the document


def tokens_of(passages: Sequence[Passage]) -> int:
    """The tokens of a document in its frame, each counted once: passages overlap."""
    last = passages[-1]
    return last.first + len(last.ids)


def model_folder(path: Path, *, plain: bool = False) -> Path:
    """The folder of a model, which may be that of a run; `plain`: or of an encoder alone."""
    if (path / "run.json").is_file():
        path = RunFolder.existing(path).model_folder("best")
    if not (path / MODULES).is_file() and not (plain and (path / "config.json").is_file()):
        raise UserError(
            f"{path} is no folder of sentence-transformers: it has no {MODULES}. Train one with "
            "task: embed, or convert one."
        )
    check_safetensors(path)
    return path


class Embedder:
    """A model that turns texts into vectors of norm 1.

    With `plain` also an encoder without the files of sentence-transformers, whose rows are then
    averaged; `note` says so.
    """

    note: str | None = None

    def __init__(self, path: Path, *, plain: bool = False) -> None:
        self.folder = model_folder(path, plain=plain)
        if not (self.folder / MODULES).is_file():
            self.note = (
                f"{self.folder} is an encoder without {MODULES}: the vector of a text is the mean "
                "of its rows."
            )
        self.tokenizer: Any
        if self._is_own():
            model = load_pretrained(LinformerForEmbedding, self.folder).eval()
            self.model: Any = model
            self.encoder: Any = model.linformer
            self._forward: Callable[[dict[str, Any]], Any] = lambda batch: model(**batch).embeddings
            self.tokenizer = load_tokenizer(self.folder)
            self.longest = model.config.max_position_embeddings
            self.size = model.config.hidden_size
        else:
            self._load_sentence_transformer()
        self.frame = frame_of(self.tokenizer, "embed")

    def _is_own(self) -> bool:
        """Whether our class makes the vectors: sentence-transformers takes 1 s to import."""
        if not all((self.folder / name).is_file() for name in (MODULES, TOKENIZER_FILE)):
            return False
        if architectures(self.folder) != [LinformerForEmbedding.__name__]:
            return False
        with user_input(f"cannot load the model {self.folder}"), quiet():
            config = LinformerConfig.from_pretrained(
                self.folder, local_files_only=True, trust_remote_code=False
            )
            return are_of_model(self.folder, config)

    def _load_sentence_transformer(self) -> None:
        from sentence_transformers import SentenceTransformer

        with user_input(f"cannot load the model {self.folder}"), quiet():
            loaded: Any = SentenceTransformer(
                str(self.folder),
                device="cpu",
                trust_remote_code=False,
                local_files_only=True,
                model_kwargs={"use_safetensors": True},
            ).eval()
        self.model, self.encoder = loaded, loaded[0].auto_model
        self._forward = lambda batch: loaded(batch)["sentence_embedding"]
        self.tokenizer = loaded.tokenizer
        self.longest = int(loaded.max_seq_length)
        self.size = int(loaded.get_embedding_dimension())

    def embed(self, batch: dict[str, Any]) -> Any:
        """(B, M) of norm 1, of input_ids and an attention_mask (B, N)."""
        import torch

        return torch.nn.functional.normalize(self._forward(batch).float(), dim=-1)

    def digest(self) -> str:
        """Of everything in the folder that vectors depend on."""
        files = [
            file
            for file in sorted(self.folder.rglob("*"))
            if file.suffix in (".json", ".safetensors", ".txt") and file.name not in NOT_MODEL
        ]
        parts = [part for f in files for part in (f.relative_to(self.folder).as_posix(), f)]
        with user_input(f"cannot read {self.folder}"):
            return digest(*parts)

    def passages(self, text: str, tokens: int) -> list[Passage]:
        """Overlapping passages of at most `tokens` tokens: all of the text."""
        encoding = encode_long(self.tokenizer, text)
        ids, offsets = encoding.ids, encoding.offsets
        room = min(tokens, self.longest) - self.frame.size
        if room < 1:
            raise UserError(
                f"a passage must have at least {self.frame.size + 1} tokens for this model: got "
                f"{min(tokens, self.longest)}."
            )
        found = []
        for piece in overlapping(len(ids), room, int(room * OVERLAP)):
            if not len(piece):
                continue
            here = offsets[piece.start : piece.stop]
            row = self.frame.row(ids[piece.start : piece.stop])
            found.append(Passage(here[0][0], max(stop for _, stop in here), row, piece.start))
        return found

    def vectors(
        self, rows: Sequence[np.ndarray], tell: Callable[[int], None] = lambda done: None
    ) -> np.ndarray:
        """(B, M) in float32, of rows of token ids; batched by length. `tell` gets those done."""
        import torch

        found = np.zeros((len(rows), self.size), dtype=np.float32)
        order = sorted(range(len(rows)), key=lambda row: -len(rows[row]))
        at = 0
        while at < len(order):
            count = max(1, TOKENS_PER_BATCH // len(rows[order[at]]))
            some = order[at : at + count]
            at += len(some)
            batch = {
                "input_ids": pad([rows[row] for row in some], self.tokenizer.pad_token_id or 0),
                "attention_mask": pad([np.ones(len(rows[row]), dtype=np.int64) for row in some], 0),
            }
            with torch.no_grad():
                found[some] = self.embed(batch).numpy()
            tell(at)
        return found

    def query(self, text: str) -> tuple[np.ndarray, str | None]:
        """The vector of a query, and a line about what was not read of it."""
        if not text.strip():
            raise UserError("the query is empty.")
        pieces = self.passages(text, self.longest)
        if not pieces:
            raise UserError(f"the query has no token for this model: got {ascii(text)[:60]}.")
        note = None
        if len(pieces) > 1:
            note = f"the query is longer than {self.longest} tokens: its pieces are averaged."
        weights = np.array([len(piece.ids) for piece in pieces], dtype=np.float32)
        vector = weights @ self.vectors([piece.ids for piece in pieces])
        return vector / max(float(np.linalg.norm(vector)), 1e-12), note


NOT_MODEL = ("manifest.json", "score.json", "trainer_state.json")
