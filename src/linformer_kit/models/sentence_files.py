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
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(_TYPES)
    ]
    modes = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}
    pooling = {
        "word_embedding_dimension": config.hidden_size,
        **{f"pooling_mode_{name}": key == config.pooling for key, name in modes.items()},
    }
    _write(folder / MODULES, modules)
    _write(folder / POOLING, pooling)
    write_limits(folder, config.max_position_embeddings)
    _write(folder / ABOUT, {"similarity_fn_name": "cosine"})


def write_limits(folder: Path, length: int) -> None:
    """How many tokens the model reads."""
    _write(folder / LIMITS, {"max_seq_length": length, "do_lower_case": False})


def _write(path: Path, content: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
