"""Masked language modelling: which tokens are hidden, and what the model sees in their place.

Of the tokens, `share` are chosen; of these 80 % become the mask, 10 % a random token and 10 % stay
(Devlin et al. 2019). With whole words a word's tokens are chosen together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

IGNORED = -100  # a position without a label
MASKED, REPLACED = 0.8, 0.1


@dataclass(frozen=True)
class Masking:
    """How to mask a row; its randomness is a function of (seed, draw)."""

    mask_id: int
    vocab_size: int
    special_ids: tuple[int, ...]
    share: float = 0.15
    whole_words: bool = False
    seed: int = 0

    def __call__(
        self, ids: np.ndarray, word_starts: np.ndarray, draw: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """ids -> (what the model sees, labels). At least one token is chosen if any can be."""
        # Draws of training count up from 0, those of evaluation down from -1.
        random = np.random.Generator(np.random.Philox(key=[self.seed, draw % 2**63]))
        ids = ids.astype(np.int64)
        allowed = ~np.isin(ids, self.special_ids)
        if self.whole_words:
            chosen = self._words(random, word_starts, allowed)
        else:
            chosen = allowed & (random.random(len(ids)) < self.share)
            if not chosen.any() and allowed.any():
                chosen[random.choice(np.flatnonzero(allowed))] = True
        labels = np.where(chosen, ids, IGNORED)
        fate = random.random(len(ids))
        seen = np.where(chosen & (fate < MASKED), self.mask_id, ids)
        swap = chosen & (fate >= MASKED) & (fate < MASKED + REPLACED)
        seen[swap] = random.integers(self.vocab_size, size=int(swap.sum()))
        return seen, labels

    def _words(
        self, random: np.random.Generator, word_starts: np.ndarray, allowed: np.ndarray
    ) -> np.ndarray:
        """Words in random order until `share` of the tokens is reached."""
        chosen = np.zeros(len(allowed), dtype=bool)
        starts = word_starts.copy()
        starts[:1] = True  # a row may begin within a word
        word = np.cumsum(starts) - 1
        sizes = np.bincount(word, weights=allowed).astype(np.int64)
        candidates = np.flatnonzero(sizes)
        if len(candidates) == 0:
            return chosen
        order = random.permutation(candidates)
        wanted = max(1, round(self.share * int(allowed.sum())))
        before = np.cumsum(sizes[order]) - sizes[order]
        picked = order[before < wanted]
        return np.isin(word, picked) & allowed
