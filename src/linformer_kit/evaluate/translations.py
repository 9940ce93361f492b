"""Translations of a part, and their BLEU and chrF by sacrebleu, each with its signature."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..data.collate import Collate
from ..errors import user_input
from ..machine_memory import require_memory
from ..measure import quantities

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedTokenizerFast

    from ..config.schema import EvaluateSection
    from ..data.rows import Rows


BEAM_BYTES = 48  # of a token of a beam: two copies of sequences and of candidates, and whence


@torch.no_grad()
def translate_rows(
    model: Any,
    tokenizer: PreTrainedTokenizerFast,
    rows: Rows,
    options: EvaluateSection,
    *,
    share: tuple[int, int] = (0, 1),
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> dict[int, str]:
    """Translations by row, of every row or of this process's share (index, of how many)."""
    collate = Collate("translate", pad_id=tokenizer.pad_token_id)
    lengths = rows.column("length")
    order = sorted(range(len(rows)), key=lambda row: int(lengths[row]))[share[0] :: share[1]]
    found: dict[int, str] = {}
    training = model.training
    model.eval()
    for start in range(0, len(order), options.batch_size):
        here = order[start : start + options.batch_size]
        batch = collate(rows.__getitems__(here))
        made = model.generate(
            input_ids=batch["input_ids"].to(model.device),
            attention_mask=batch["attention_mask"].to(model.device),
            num_beams=options.beams,
            length_penalty=options.length_penalty,
            max_new_tokens=room(model, options.max_new_tokens, beams=len(here) * options.beams),
            do_sample=False,
        )
        texts = tokenizer.batch_decode(made, skip_special_tokens=True)
        found.update(zip(here, (text.strip() for text in texts), strict=True))
        tell(len(found), len(order))
    model.train(training)
    return found


def room(model: Any, wanted: int, *, used: int = 1, beams: int = 1) -> int:
    """How many tokens may be written: learned positions end, whatever is wanted.

    `beams` are all that are kept of a batch. Their memory is allocated before the first token.
    """
    config = model.config
    kind = config.position_embedding_type
    if config.is_encoder_decoder:
        kind = config.decoder_position_embedding_type
    if kind == "learned":
        wanted = max(1, min(wanted, config.max_position_embeddings - used))
    with user_input("too many tokens are to be written"):
        require_memory(
            f"{wanted:,} new tokens for {quantities.count(beams, 'beam')}",
            BEAM_BYTES * beams * wanted,
            remedy="Use a smaller max_new_tokens, fewer beams or smaller batches.",
        )
    return wanted


def bleu_and_chrf(translations: list[str], references: list[str]) -> dict[str, Any]:
    """13a tokenisation, cased and lower-cased; the signatures say exactly what was computed."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    scores: dict[str, Any] = {}
    signatures: dict[str, str] = {}
    for name, metric in (
        ("bleu", BLEU()),
        ("bleu_lowercased", BLEU(lowercase=True)),
        ("chrf", CHRF()),
    ):
        score = metric.corpus_score(translations, [references])
        scores[name] = round(score.score, 3)
        signatures[name] = str(metric.get_signature())
    return {**scores, "signatures": signatures}
