"""Linformer: Transformers whose time and memory grow linearly with the length of the input."""

from importlib.metadata import PackageNotFoundError, version

from .core.allocator import keep_memory
from .core.attention import LinformerAttention
from .core.decoder import LinformerDecoder
from .core.encoder import LinformerEncoder
from .core.learning import parameter_groups
from .core.plan import Plan
from .core.resize import resize_max_length
from .core.state import DecoderState, join_states

try:
    __version__ = version("linformer-kit")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

__all__ = [
    "DecoderState",
    "LinformerAttention",
    "LinformerDecoder",
    "LinformerEncoder",
    "Plan",
    "__version__",
    "join_states",
    "keep_memory",
    "parameter_groups",
    "resize_max_length",
]
