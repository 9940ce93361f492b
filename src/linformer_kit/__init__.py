"""Linformer: Transformers whose time and memory grow linearly with the length of the input."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .core.adapter import TransformerEncoderAdapter
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
    "TransformerEncoderAdapter",
    "__version__",
    "join_states",
    "keep_memory",
    "parameter_groups",
    "resize_max_length",
]

# Imported on first use: importing torch takes a second or more, which `linformer --help` and a
# mistake in a configuration need not wait for. A test compares this with the imports above.
_MODULES = {
    "DecoderState": "state",
    "LinformerAttention": "attention",
    "LinformerDecoder": "decoder",
    "LinformerEncoder": "encoder",
    "Plan": "plan",
    "TransformerEncoderAdapter": "adapter",
    "join_states": "state",
    "keep_memory": "allocator",
    "parameter_groups": "learning",
    "resize_max_length": "resize",
}


if not TYPE_CHECKING:  # hidden from type checkers, which then refuse unknown names

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f".core.{_MODULES[name]}", __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
