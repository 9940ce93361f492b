"""Linformer: Transformers whose time and memory grow linearly with the length of the input."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .core.adapter import TransformerEncoderAdapter
    from .core.attention import LinformerAttention
    from .core.cpu.allocator import keep_memory
    from .core.decoder import LinformerDecoder
    from .core.encoder import LinformerEncoder
    from .core.learning_rates import parameter_groups
    from .core.plan import Plan
    from .core.resize import resize_max_length
    from .core.state import DecoderState, join_states

    __version__: str

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
# The version too: until the command line runs, Ctrl-C ends it with a traceback.
_MODULES = {
    "DecoderState": "state",
    "LinformerAttention": "attention",
    "LinformerDecoder": "decoder",
    "LinformerEncoder": "encoder",
    "Plan": "plan",
    "TransformerEncoderAdapter": "adapter",
    "join_states": "state",
    "keep_memory": "cpu.allocator",
    "parameter_groups": "learning_rates",
    "resize_max_length": "resize",
}


if not TYPE_CHECKING:  # hidden from type checkers, which then refuse unknown names

    def __getattr__(name: str) -> object:
        if name == "__version__":
            value = _version()
        elif name in _MODULES:
            value = getattr(import_module(f".core.{_MODULES[name]}", __name__), name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("linformer-kit")
    except PackageNotFoundError:  # a source tree that was never installed
        return "0+unknown"


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
