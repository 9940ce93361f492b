"""One sequence over many processes: each rank holds a part of the positions."""

from .collectives import Traffic, count_traffic
from .gradients import average_gradients
from .parts import bounds, local_part
from .stream import stream, stream_pooled
from .swap import parallelize

__all__ = [
    "Traffic",
    "average_gradients",
    "bounds",
    "count_traffic",
    "local_part",
    "parallelize",
    "stream",
    "stream_pooled",
]
