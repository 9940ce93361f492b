"""In which order rows are drawn: a function of (seed, step) alone.

Rows come from one endless stream: the rows in a random order, again in another, and so on. Step s
takes the next `batch_size` of them. A run that is resumed at step s, and a process that does a half
of every batch, therefore draw what an uninterrupted single process draws.

With lengths given, the stream is cut into pools of many batches, each pool is sorted by length and
its batches are put back into a random order: rows of a batch are of similar length, so little is
padded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

POOL = 64  # batches that are sorted together
Draw = tuple[int, int]  # (row, place in the endless stream)


class TrainingOrder:
    """Micro-batches of a whole training, as a batch sampler.

    A step is `batch_size` rows. They are handed out in micro-batches of `micro`; with several
    processes, accelerate deals these in turn, so a step is the same set of rows for any number.
    """

    def __init__(
        self,
        *,
        rows: int,
        steps: int,
        batch_size: int,
        micro: int,
        seed: int,
        lengths: np.ndarray | None = None,
    ) -> None:
        if batch_size % micro:
            raise ValueError(f"micro must divide batch_size: got {micro} and {batch_size}.")
        self.rows = rows
        self.steps = steps
        self.step_size = batch_size
        self.batch_size = micro  # the name accelerate looks for
        self.drop_last = True
        self.seed = seed
        self.lengths = lengths
        self._epoch = (-1, np.empty(0, dtype=np.int64))
        self._pool = (-1, np.empty((0, 0), dtype=np.int64))

    def __len__(self) -> int:
        return self.steps * (self.step_size // self.batch_size)

    def __iter__(self) -> Iterator[list[Draw]]:
        for step in range(self.steps):
            draws = self.step(step)
            for start in range(0, self.step_size, self.batch_size):
                yield draws[start : start + self.batch_size]

    def step(self, step: int) -> list[Draw]:
        """The rows of one step, each with its place in the stream."""
        if self.lengths is None:
            places = np.arange(step * self.step_size, (step + 1) * self.step_size)
        else:
            pool, at = divmod(step, POOL)
            places = self._pool_of(pool)[at]
        return [(int(row), int(place)) for row, place in zip(self._at(places), places, strict=True)]

    def _pool_of(self, pool: int) -> np.ndarray:
        """Places of the stream: (POOL, batch size)."""
        if self._pool[0] != pool:
            assert self.lengths is not None
            start = pool * POOL * self.step_size
            places = np.arange(start, start + POOL * self.step_size)
            lengths = self.lengths[self._at(places)]
            sorted_places = places[np.argsort(lengths, kind="stable")]
            shuffle = np.random.default_rng((self.seed, 1, pool)).permutation(POOL)
            self._pool = (pool, sorted_places.reshape(POOL, self.step_size)[shuffle])
        return self._pool[1]

    def _at(self, places: np.ndarray) -> np.ndarray:
        """The rows at these places of the stream."""
        epochs, offsets = np.divmod(places, self.rows)
        found = np.empty(len(places), dtype=np.int64)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            found[here] = self._permutation(int(epoch))[offsets[here]]
        return found

    def _permutation(self, epoch: int) -> np.ndarray:
        if self._epoch[0] != epoch:
            order = np.random.default_rng((self.seed, 0, epoch)).permutation(self.rows)
            self._epoch = (epoch, order)
        return self._epoch[1]
