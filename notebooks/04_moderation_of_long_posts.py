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
# # Moderation of long posts
#
# One insult is enough to remove a post, wherever it stands. A classifier that reads the first 128 tokens
# cannot see most of them. Posts are generated here, so the truth is known: prose of the Python documentation, in
# which every post has a harmless sentence, and half of them an insult made of the same words, at any depth.
#
# The same small model is trained twice, on the same posts: cut at 128 tokens, and whole. Seed 0; about two
# minutes on one core.

# %%
import json
import math
import random
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

from linformer_kit.config.load import load
from linformer_kit.data.builtin.letters import FIRST
from linformer_kit.data.builtin.needle import haystack
from linformer_kit.evaluate.evaluation import evaluate_run
from linformer_kit.predict.answers import Options, predict_texts
from linformer_kit.train.run import train

torch.set_num_threads(1)
work = Path(tempfile.mkdtemp())

# %% [markdown]
# ## Posts
#
# Insulting and harmless sentences share their names, adjectives and nouns, so no single word decides.
# Training posts have 5 to 450 words (the short ones teach what an insult is), test posts 200 to 450, from
# other pages of the documentation.

# %%
ADJECTIVES = ("stupid", "lazy", "silly", "worthless", "dirty", "fat", "greedy", "miserable")
NOUNS = ("clown", "pig", "rat", "donkey", "parrot", "monkey", "snake", "goat")
INSULTS = (
    "{name}, you are a {adjective} {noun}!",
    "Shut up, {name}, you {adjective} {noun}!",
    "We all agree that {name} is a {adjective} {noun}.",
    "Nobody needs a {adjective} {noun} like {name} here.",
)
HARMLESS = (
    "{name} drew a {adjective} {noun} for the school play.",
    "In the story of {name}, a {adjective} {noun} crosses the river.",
    "{name} feeds the {adjective} {noun} behind the house.",
    "The {adjective} {noun} in the film made {name} laugh!",
)


def post(draw: random.Random, least: int, *, held_out: bool) -> dict:
    """A post, its label, and the depth of the insult from 0 to 1."""

    def sentence(patterns):
        words = {"name": FIRST, "adjective": ADJECTIVES, "noun": NOUNS}
        return draw.choice(patterns).format(**{k: draw.choice(v) for k, v in words.items()})

    length, text = math.exp(draw.uniform(math.log(least), math.log(450))), []
    for line in haystack("needle", draw, held_out=held_out):
        text.append(line)
        if len(" ".join(text).split()) > length:
            break
    text.insert(draw.randint(0, len(text)), sentence(HARMLESS))
    if draw.random() < 0.5:
        return {"text": " ".join(text), "label": "fine", "depth": None}
    insult = sentence(INSULTS)
    text.insert(draw.randint(0, len(text)), insult)
    whole = " ".join(text)
    return {"text": whole, "label": "insult", "depth": whole.index(insult) / len(whole)}


draw = random.Random(0)
posts = {
    "train": [post(draw, 5, held_out=False) for _ in range(2500)],
    "validation": [post(draw, 5, held_out=False) for _ in range(100)],
    "test": [post(draw, 200, held_out=True) for _ in range(300)],
}
for part, records in posts.items():
    lines = (json.dumps({"text": one["text"], "label": one["label"]}) for one in records)
    (work / f"{part}.jsonl").write_text("\n".join(lines))
example = next(one for one in posts["test"] if one["depth"] is not None)
place = int(example["depth"] * len(example["text"]))
print(f"... {example['text'][place - 90 : place + 110]} ...")

# %% [markdown]
# ## Train
#
# The same as `linformer train posts.yaml`, with `data.max_length=128` for the model that is cut. Attention
# is a window of 16 tokens on each side and 32 segment means; the classifier takes the maximum over tokens.

# %%
(work / "posts.yaml").write_text(f"""
task: classify
run: {work}/whole
seed: 0
data:
  train: {work}/train.jsonl
  validation: {work}/validation.jsonl
  test: {work}/test.jsonl
  max_length: 1024
  on_overflow: truncate
  cache: {work}/cache
tokenizer: {{ kind: bpe, vocab_size: 2000 }}
model:
  hidden_size: 64
  num_hidden_layers: 2
  num_attention_heads: 4
  intermediate_size: 128
  hidden_dropout_prob: 0.0
  attention_probs_dropout_prob: 0.0
  embedding_norm: true
  projection: mean
  k: 32
  window: 16
  neighbours: 5
  position_embedding_type: none
  pooling: max
train:
  steps: 160
  batch_size: 16
  lr: 0.003
  warmup: 20
  threads: 1
  log_every: 40
  eval_every: 160
  save_every: 160
""")
whole = train(load(work / "posts.yaml"))
cut = train(load(work / "posts.yaml", [f"run={work}/cut", "data.max_length=128"]))

# %% [markdown]
# ## Test
#
# Three ways to read the test posts: cut at 128 tokens; the same model over overlapping pieces of 128 tokens, with
# the probabilities of the pieces averaged (`on_overflow: chunk`); and whole. On the command line: `linformer
# evaluate RUN --on-overflow chunk`. Every answer of `predict` says how many tokens were read.

# %%
readers = {
    "first 128 tokens": (cut, "truncate"),
    "pieces, averaged": (cut, "chunk"),
    "whole": (whole, "truncate"),
}
truth = np.array([one["label"] == "insult" for one in posts["test"]])
depth = np.array([one["depth"] or 0.0 for one in posts["test"]])
texts = [one["text"] for one in posts["test"]]
accuracy, share, flagged = {}, {}, {}
for name, (run, policy) in readers.items():
    answers = list(predict_texts(run, texts, options=Options(top=1), on_overflow=policy))
    flagged[name] = np.array([answer.answers[0]["text"] == "insult" for answer in answers])
    tokens = [answer.tokens() for answer in answers]
    share[name] = sum(t["tokens_read"] for t in tokens) / sum(t["tokens_total"] for t in tokens)
    accuracy[name] = float((flagged[name] == truth).mean())
    print(
        f"{name:17} {share[name]:6.1%} of the text read, accuracy {accuracy[name]:.3f}, "
        f"insults found {flagged[name][truth].mean():.1%}, "
        f"harmless posts flagged {flagged[name][~truth].mean():.1%}"
    )
for run, name in ((cut, "first 128 tokens"), (whole, "whole")):
    scored = evaluate_run(run)["metrics"]["accuracy"]
    assert abs(scored - accuracy[name]) < 0.01, "evaluate and predict agree"

# %% [markdown]
# ## The picture
#
# Cut at 128 tokens, an insult is found only if it is at the start: the rest of the posts were harmless to this
# model in training too, whatever their labels said. Pieces read everything and help nothing: a mean over all
# pieces hides the one that has the insult, and the first piece no longer decides. `chunk` is for labels that all parts of
# a text share, such as its topic. The whole model finds every insult. These posts are easier than real
# ones: eight patterns of sentences, and the same ones in the test.

# %%
COLOURS = dict(zip(readers, ("#c9b27a", "#3f8fd6", "#0f9d8a"), strict=True))
figure, (a, b) = plt.subplots(1, 2, figsize=(10.5, 3.9), layout="constrained", width_ratios=(2, 1))
edges = np.linspace(0, 1, 7)
middle = (edges[1:] + edges[:-1]) / 2
for name, found in flagged.items():
    at = np.digitize(depth[truth], edges[1:-1])
    recall = [found[truth][at == cell].mean() for cell in range(len(middle))]
    a.plot(middle, recall, marker="o", color=COLOURS[name], label=name)
a.set(title="Insults found, by depth", xlabel="depth of the insult (0 start, 1 end of the post)")
a.set(ylabel="share found", ylim=(-0.03, 1.05), xlim=(0, 1))
a.legend()
bars = b.bar(list(readers), list(accuracy.values()), color=list(COLOURS.values()))
labels = [f"{accuracy[name]:.0%}\n\n{share[name]:.0%}\nread" for name in readers]
b.bar_label(bars, labels, label_type="center", color="white")
b.set(title=f"Accuracy (one label for all: {max(truth.mean(), 1 - truth.mean()):.0%})")
b.tick_params(axis="x", labelsize=8)
Path("pictures").mkdir(exist_ok=True)
figure.savefig("pictures/moderation-of-long-posts.png", dpi=110)
