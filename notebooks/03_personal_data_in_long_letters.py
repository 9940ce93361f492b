# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Names and personal data in long letters
#
# People, dates, amounts and e-mail addresses are found and masked in a correspondence that is many times longer
# than the model reads, without losing a token. The model is trained here, on generated letters whose spans
# are known (`data.train: letters`): half of what `linformer train quick-tag` does. Less than two minutes on
# one core.

# %%
import random
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch

from linformer_kit.config.load import load
from linformer_kit.data.builtin import BUILTIN
from linformer_kit.evaluate.evaluation import evaluate_run
from linformer_kit.predict.answers import Options, predict_texts
from linformer_kit.train.run import train

torch.set_num_threads(1)
work = Path(tempfile.mkdtemp())
settings = load(
    Path("quick-tag"),
    [f"run={work / 'run'}", f"data.cache={work / 'cache'}", "train.steps=300", "train.threads=1",
     "train.eval_every=300", "train.save_every=300", "train.log_every=100"],
)  # fmt: skip
run = train(settings)

# %% [markdown]
# ## How good is it?
#
# On letters that it was not trained on; a span counts if its start, end and type are all right. Most
# surnames and domains of the test letters are not in the training letters.

# %%
metrics = evaluate_run(run)["metrics"]
for name, one in metrics["types"].items():
    print(
        f"{name:8} precision {one['precision']:.3f}  recall {one['recall']:.3f}  F1 {one['f1']:.3f}"
    )
print(f"all      F1 {metrics['f1']:.3f}")

# %% [markdown]
# ## A long correspondence
#
# Forty new letters as one text, with emoji, accents as combining marks and both kinds of line ends. The model
# reads 256 tokens; `on_overflow: chunk` reads overlapping pieces and joins their spans. Offsets are those of
# the text as it was given.

# %%
text, truth = "", set()
for record in list(BUILTIN["letters"].records({"documents": 40}, 12345)):
    truth |= {(s.start + len(text), s.end + len(text), s.label) for s in record["spans"]}
    text += record["text"] + "\n\n"
(answer,) = predict_texts(run, [text], options=Options(), on_overflow="chunk")
found = {(a["start"], a["end"], a["label"]) for a in answer.answers}
right = found & truth
tokens = answer.tokens()
print(
    f"{len(text):,} characters, {tokens['tokens_read']:,} of {tokens['tokens_total']:,} tokens read"
)
print(
    f"{len(truth)} spans: {len(right)} found, {len(truth - found)} missed, {len(found - truth)} wrong"
)
assert all(text[a["start"] : a["end"]] == a["text"] for a in answer.answers)

# %% [markdown]
# ## Masked
#
# The same with `Options(redact=True)`, on the command line `linformer predict RUN --redact`.

# %%
start = random.Random(0).randrange(len(text) - 700)
(masked,) = predict_texts(run, [text[start : start + 600]], options=Options(redact=True))
print(masked.answers[0]["text"])

# %% [markdown]
# ## The picture

# %%
COLOURS = {"person": "#0f9d8a", "date": "#3f8fd6", "amount": "#e8743b", "email": "#9a6fd0"}
figure, (a, b) = plt.subplots(1, 2, figsize=(11, 3.8), layout="constrained", width_ratios=(2, 1))
for row, (label, colour) in enumerate(COLOURS.items()):
    for spans, height, shade in ((right, 0.7, colour), (truth - found, 0.35, "black")):
        places = [(s + e) / 2 for s, e, kind in spans if kind == label]
        a.vlines(places, row - height / 2, row + height / 2, color=shade, linewidth=1.4)
a.set_yticks(range(len(COLOURS)), list(COLOURS))
a.set(title="Spans along the text (black: missed)", xlabel="character")
end = 256 * len(text) / tokens["tokens_total"]
a.axvspan(0, end, color="#f2e6c9", zorder=0)
a.annotate("what a model of 256 tokens\nwould read alone", (end, len(COLOURS) - 0.5), fontsize=8)
a.set_ylim(-0.7, len(COLOURS) + 0.2)
b.bar(
    list(COLOURS), [metrics["types"][name]["f1"] for name in COLOURS], color=list(COLOURS.values())
)
b.set(title="F1 on test letters", ylim=(0, 1))
Path("pictures").mkdir(exist_ok=True)
figure.savefig("pictures/personal-data-in-long-letters.png", dpi=110)
