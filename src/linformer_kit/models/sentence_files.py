"""The files that make a model folder one of sentence-transformers.

After `import linformer_kit.models`, `SentenceTransformer(folder)` reads the encoder, how its rows
are pooled, and that vectors have norm 1.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from .config import LinformerConfig

MODULES = "modules.json"
POOLING = "1_Pooling/config.json"
LIMITS = "sentence_bert_config.json"
ABOUT = "config_sentence_transformers.json"
_TYPES = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))


def write_sentence_files(folder: Path, config: LinformerConfig) -> None:
    """Write them beside a saved model."""
    for name, content in _sentence_files(config).items():
        _write(folder / name, content)


def are_of_model(folder: Path, config: LinformerConfig) -> bool:
    """Whether they say just what the model does by itself, as `write_sentence_files` wrote them."""
    found = {path.relative_to(folder).as_posix() for path in folder.glob("*_*/*.json")}
    wanted = _sentence_files(config)
    return found <= set(wanted) and all(
        (folder / name).is_file() and json.loads((folder / name).read_bytes()) == content
        for name, content in wanted.items()
    )


def _sentence_files(config: LinformerConfig) -> dict[str, object]:
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(_TYPES)
    ]
    modes = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}
    pooling = {
        "word_embedding_dimension": config.hidden_size,
        **{f"pooling_mode_{name}": key == config.pooling for key, name in modes.items()},
    }
    return {
        MODULES: modules,
        POOLING: pooling,
        LIMITS: _limits(config.max_position_embeddings),
        ABOUT: {"similarity_fn_name": "cosine"},
    }


def write_limits(folder: Path, length: int) -> None:
    """How many tokens the model reads."""
    _write(folder / LIMITS, _limits(length))


def _limits(length: int) -> dict[str, object]:
    return {"max_seq_length": length, "do_lower_case": False}


def _write(path: Path, content: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
