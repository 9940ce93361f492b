"""Folders that this version wrote: later versions read them and go on in them.

`write` makes a finished run, an interrupted run, vectors, a conversion and an index, each small;
`QUESTIONS` are commands about them, whose answers are frozen.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "files" / "artifacts"
CONFIG = """task: {task}
run: {run}
data:
  train: texts
  max_length: 32
  cache: prepared
tokenizer: {{kind: bpe, vocab_size: 300}}
model:
  {{hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 16, k: 8}}
train:
  {{steps: 12, batch_size: 4, warmup: 2, log_every: 4, eval_every: 4, save_every: 4, threads: 1}}
"""
SUBJECTS = ("the old dog", "a small cat", "one bird", "the red fox", "two fish", "the grey horse")
VERBS = ("sleeps in", "runs over", "looks at", "stays near", "leaves")
PLACES = ("the house", "a green hill", "the long road", "the river", "our garden")


def call(folder: Path, *arguments: str, code: int = 0) -> str:
    told = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, "-m", "linformer_kit.cli", *arguments],
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
        env=told,
    )
    assert done.returncode == code, f"{' '.join(arguments)}: {done.returncode}\n{done.stderr}"
    return done.stdout


def write(folder: Path) -> None:
    (folder / "texts").mkdir(parents=True)
    for number, subject in enumerate(SUBJECTS):
        lines = [f"{subject} {verb} {place}." for verb in VERBS for place in PLACES]
        (folder / "texts" / f"{number}.txt").write_text("\n\n".join(lines[number:]) + "\n")
    for task, run in (("mlm", "finished"), ("mlm", "interrupted"), ("embed", "vectors")):
        (folder / f"{run}.yaml").write_text(CONFIG.format(task=task, run=run))
    call(folder, "train", "finished.yaml")
    call(folder, "train", "vectors.yaml")
    _stop_after_a_checkpoint(folder)
    _pretrained(folder / "pretrained")
    call(folder, "convert", "pretrained", "--out", "converted", "--k", "8", "--window", "4")
    call(folder, "index", "texts", "--model", "vectors", "--out", "index", "--passage", "16")
    for unneeded in ("prepared", "finished/checkpoints", "vectors/checkpoints", "*/tensorboard"):
        for each in folder.glob(unneeded):
            shutil.rmtree(each)
    shutil.rmtree(folder / "interrupted/checkpoints/checkpoint-4")
    copy = shutil.copytree(folder, folder.parent / "copy")
    answers = {name: ask(copy) for name, ask in QUESTIONS.items()}  # in this order
    (folder / "answers.json").write_text(json.dumps(answers, indent=1) + "\n")


def _stop_after_a_checkpoint(folder: Path) -> None:
    """As a kill leaves it: what came after step 8 was never written."""
    code = (
        "import os, sys; from linformer_kit.cli import main\n"
        "import transformers\n"
        "class Stop(transformers.TrainerCallback):\n"
        "    def on_step_begin(self, args, state, control, **_):\n"
        "        if state.global_step == 9: os._exit(9)\n"
        "made = transformers.Trainer.__init__\n"
        "def init(self, *args, **given):\n"
        "    made(self, *args, **given); self.add_callback(Stop())\n"
        "transformers.Trainer.__init__ = init\n"
        "main(['train', 'interrupted.yaml'])"
    )
    told = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, check=False, capture_output=True, env=told
    )
    assert done.returncode == 9, done.stderr


def _pretrained(folder: Path) -> None:
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *_words()]
    vocabulary = {word: number for number, word in enumerate(words)}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=32,
    )
    transformers.BertForMaskedLM(config).save_pretrained(folder)


def _words() -> list[str]:
    return list(dict.fromkeys(" ".join((*SUBJECTS, *VERBS, *PLACES)).split()))


def _fill(folder: Path) -> Any:
    return json.loads(call(folder, "predict", "finished", "the old <mask> sleeps in the house."))


def _resume(folder: Path) -> Any:
    call(folder, "train", "interrupted.yaml")
    found = json.loads((folder / "interrupted" / "evaluation.json").read_text())
    return {key: value for key, value in found.items() if key in ("test", "scores", "metrics")}


def _search(folder: Path) -> Any:
    found = call(folder, "search", "index", "the red fox", "--model", "vectors/best")
    return [json.loads(line) for line in found.splitlines()]


def _index_again(folder: Path) -> Any:
    of_index = ("--model", "vectors", "--out", "index", "--passage", "16")
    return call(folder, "index", "texts", *of_index, "--documents-moved")


def _logits(folder: Path) -> Any:
    import torch
    from transformers import AutoModelForMaskedLM

    import linformer_kit.models  # noqa: F401  # registers the model type

    model = AutoModelForMaskedLM.from_pretrained(folder / "converted", trust_remote_code=False)
    with torch.inference_mode():
        return model.eval()(torch.arange(20)[None]).logits[0, ::4, ::5].tolist()


QUESTIONS = {
    "answers of a run": _fill,
    "scores of a run": lambda folder: json.loads(call(folder, "evaluate", "finished")),
    "an interrupted run goes on": _resume,
    "an index has nothing new": _index_again,
    "search": _search,
    "logits of a conversion": _logits,
    "runs": lambda folder: [json.loads(line) for line in call(folder, "runs", ".").splitlines()],
}
