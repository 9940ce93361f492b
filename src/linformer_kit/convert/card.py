"""The README.md of a converted folder: a model card with the Hub's metadata, and how to load it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import yaml_text
from ..errors import UserError
from ..models.sentence_files import MODULES
from .linformerized_folder import SETTINGS_FILE

if TYPE_CHECKING:
    from collections.abc import Mapping

CARD = "README.md"
KEPT = ("license", "license_name", "license_link", "language", "datasets", "pipeline_tag", "tags")
FRONT = re.compile(r"\A---\r?\n(.*?)\r?\n---\s*$", re.DOTALL | re.MULTILINE)
LONGEST = 2**16  # characters of the source's card that are read
AUTOMATIC = (  # (end of the class, class of transformers that loads it, pipeline)
    ("ForMaskedLM", "AutoModelForMaskedLM", "fill-mask"),
    ("ForSequenceClassification", "AutoModelForSequenceClassification", "text-classification"),
    ("ForTokenClassification", "AutoModelForTokenClassification", "token-classification"),
    ("ForQuestionAnswering", "AutoModelForQuestionAnswering", "question-answering"),
    ("ForMultipleChoice", "AutoModelForMultipleChoice", "multiple-choice"),
    ("Model", "AutoModel", "feature-extraction"),
)
SCORES = (
    ("embedding_cosine", "cosine to the original, of mean-pooled embeddings"),
    ("token_cosine", "cosine to the original, of single tokens"),
    ("masked_accuracy", "masked tokens predicted right"),
    ("masked_perplexity", "perplexity of masked tokens"),
)
UNNAMED = "# base_model: (made of a local folder: put its name on the Hub here, if it has one)\n"
CITATION = """@article{wang2020linformer,
  title   = {Linformer: Self-Attention with Linear Complexity},
  author  = {Wang, Sinong and Li, Belinda Z. and Khabsa, Madian and Fang, Han and Ma, Hao},
  journal = {arXiv preprint arXiv:2006.04768},
  year    = {2020}
}"""


def how_to_load(folder: Path, kind: str, *, name: str) -> list[str]:
    """Lines of Python that load a converted folder, called `name`, whose class is `kind`."""
    quoted = repr(name)
    if (folder / SETTINGS_FILE).is_file():
        return [
            "from linformer_kit.convert import load_linformerized",
            f"model = load_linformerized({quoted})",
        ]
    registers = "import linformer_kit.models  # registers the architecture"
    if (folder / MODULES).is_file():
        return [
            registers,
            "from sentence_transformers import SentenceTransformer",
            f"model = SentenceTransformer({quoted})",
        ]
    loader = next((auto for end, auto, _ in AUTOMATIC if kind.endswith(end)), "AutoModel")
    return [
        registers,
        f"from transformers import {loader}",
        f"model = {loader}.from_pretrained({quoted})",
    ]


def card(folder: Path, record: Mapping[str, Any], *, name: str) -> str:
    """The card of a converted model in `folder`, which will be called `name`, by its record."""
    kind = str(record.get("result", ""))
    source = str(record["source"])
    sentence = (folder / MODULES).is_file()
    metadata = _metadata_of(source)
    pipeline = next((pipe for end, _, pipe in AUTOMATIC if kind.endswith(end)), None)
    tags = metadata.pop("tags", [])
    tags = [tags] if isinstance(tags, str) else tags
    base = _base_model(source)
    front = {
        **({} if base is None else {"base_model": base}),
        "library_name": "sentence-transformers" if sentence else "transformers",
        **({} if pipeline is None else {"pipeline_tag": pipeline}),
        **metadata,
        "tags": list(dict.fromkeys(["linformer", "linear-attention", *tags])),
    }
    code = "\n".join(how_to_load(folder, kind, name=name))
    parts = [
        f"---\n{'' if base is not None else UNNAMED}{yaml_text.dump(front)}---\n",
        f"# {name}\n",
        _about(record, source),
        *_scores(record),
        f"## Load it\n\n```python\n{code}\n```\n",
        "`pip install linformer-kit` first: transformers does not have this architecture, and "
        "without the import it says that it does not recognize it.\n",
        f"## Citation\n\n```bibtex\n{CITATION}\n```\n\nCite the original model too; its licence "
        "and its limits hold for this one.\n",
    ]
    return "\n".join(parts)


def _about(record: Mapping[str, Any], source: str) -> str:
    shown = Path(source).name if Path(source).exists() else source
    if "settings" not in record:
        return f"Converted from a checkpoint of `{record['from']}`, `{shown}`, with its outputs.\n"
    settings = record["settings"]
    k = settings["k"] if isinstance(settings["k"], int) else ", ".join(map(str, settings["k"]))
    trained = record.get("training")
    how = "not trained" if trained is None else f"distilled for {trained['steps']:,} steps"
    return (
        f"`{shown}` ({record['class']}) with the attention of a Linformer: it reads "
        f"{settings['max_length']:,} positions in linear time. Converted by linformer-kit, {how}; "
        f"k {k}, window {settings['window']}, global tokens {settings['global_tokens']}, "
        f"projection {settings['projection']}. `conversion.json` has every option.\n"
    )


def _scores(record: Mapping[str, Any]) -> list[str]:
    """The table of scores, if there was a text to measure on."""
    parts = (("original", "original"), ("not trained", "untrained"), ("distilled", "trained"))
    columns = {title: record[part] for title, part in parts if record.get(part)}
    measured = columns.get("distilled", columns.get("not trained"))
    if measured is None:
        return []
    rows = [
        f"| {what} | " + " | ".join(_number(found.get(key)) for found in columns.values()) + " |"
        for key, what in SCORES
        if key in measured
    ]
    return [
        "## Scores\n",
        f"On {measured['pieces']} pieces of {measured['length']:,} tokens of text that it was not "
        "trained on.\n",
        "\n".join([f"| | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}", *rows]) + "\n",
    ]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _base_model(source: str) -> str | None:
    """The name of the source on the Hub: as it was given, or of a folder in the Hub's cache."""
    if not Path(source).exists():
        return source
    found = re.search(r"models--([\w.-]+?)--([\w.-]+)[/\\]snapshots", str(Path(source).resolve()))
    return None if found is None else f"{found[1]}/{found[2]}"


def _metadata_of(source: str) -> dict[str, Any]:
    """What the source's own card says and holds for the result too: plain words alone."""
    file: Any = Path(source) / CARD
    if not Path(source).exists():
        from huggingface_hub import try_to_load_from_cache

        file = try_to_load_from_cache(source, CARD)
    try:
        with Path(file).open(encoding="utf-8") as opened:
            found = FRONT.search(opened.read(LONGEST))
        said = yaml_text.parse(found[1]) if found else {}
    except (OSError, TypeError, UnicodeDecodeError, UserError):
        return {}  # a card that cannot be read says nothing
    if not isinstance(said, dict):
        return {}
    values = {name: said[name] for name in KEPT if name in said}
    return {name: value for name, value in values.items() if _is_plain(value)}


def _is_plain(value: object) -> bool:
    words = value if isinstance(value, list) else [value]
    return bool(words) and all(isinstance(word, str) and len(word) <= 200 for word in words)
