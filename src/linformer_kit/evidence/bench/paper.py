"""Table 3 of the paper: how much less time and memory Linformer took than the Transformer of 2020.

Inference, layerwise sharing, one V100 of 16 GB; memory is the ratio of the largest batches. Source:
Wang et al. 2020, arXiv 2006.04768.
"""

from __future__ import annotations

from typing import NamedTuple

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
ROWS = (128, 256, 512, 1024, 2048)


class Saved(NamedTuple):
    """How many times less."""

    time: float
    memory: float


_TIME = {
    512: (1.5, 1.3),
    1024: (1.7, 1.6, 1.3),
    2048: (2.6, 2.4, 2.1, 1.3),
    4096: (3.4, 3.2, 2.8, 2.2, 1.3),
    8192: (5.5, 5.0, 4.4, 3.5, 2.1),
    16384: (8.6, 7.8, 7.0, 5.6, 3.3),
    32768: (13.0, 12.0, 11.0, 8.8, 5.0),
    65536: (20.0, 18.0, 16.0, 14.0, 7.9),
}
_MEMORY = {
    512: (1.7, 1.5),
    1024: (3.0, 2.9, 1.8),
    2048: (6.1, 5.6, 3.6, 2.0),
    4096: (14.0, 13.0, 8.3, 4.3, 2.3),
    8192: (28.0, 26.0, 17.0, 8.5, 4.5),
    16384: (56.0, 48.0, 32.0, 16.0, 8.0),
    32768: (56.0, 48.0, 36.0, 18.0, 16.0),
    65536: (60.0, 52.0, 40.0, 20.0, 18.0),
}

TABLE_3: dict[tuple[int, int], Saved] = {
    (length, k): Saved(time, memory)
    for length in LENGTHS
    for k, time, memory in zip(ROWS, _TIME[length], _MEMORY[length], strict=False)
}
