"""One sequence over many processes: each rank holds a part of the positions."""

from .collectives import Traffic, count_traffic
from .gradients import average_gradients
from .parts import bounds, local_part
from .row_blocks import recompute_in_blocks
from .stream import stream, stream_pooled
from .swap import parallelize

__all__ = [
    "Traffic",
    "average_gradients",
    "bounds",
    "count_traffic",
    "local_part",
    "parallelize",
    "recompute_in_blocks",
    "stream",
    "stream_pooled",
]
