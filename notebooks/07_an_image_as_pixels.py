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
# # An image as pixels, beside a ViT
#
# A vision Transformer cuts an image into patches, because attention to every pixel costs the square of
# their number. A Linformer can read the pixels one by one. Handwritten digits of scikit-learn (1,797
# images of 8 × 8), three models of the same width and depth, trained alike on the same images:
#
# - **patches, full**: 16 patches of 2 × 2, full attention, as in a ViT;
# - **pixels, full**: 64 pixels, full attention;
# - **pixels, Linformer**: 64 pixels, keys and values compressed to 16 rows.
#
# Seeds 0 and 1; two or three minutes on one core.

# %%
import json
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits

from linformer_kit import LinformerEncoder
from linformer_kit.config.load import load
from linformer_kit.measure.timing import alternate
from linformer_kit.models.load import load_pretrained
from linformer_kit.models.task_heads import LinformerForSequenceClassification
from linformer_kit.predict.answers import Options, predict_texts
from linformer_kit.train.run import train

torch.set_num_threads(1)
work = Path(tempfile.mkdtemp())

# %% [markdown]
# ## Images as sequences of numbers
#
# A row of the data is a list of positions, each with its numbers: one for a pixel, four for a patch. The task
# `classify` reads them from the column that `data.features` names. All models get the same three parts.

# %%
digits = load_digits()
images = digits.images / 16  # (1797, 8, 8), from 0 to 1
order = np.random.default_rng(0).permutation(len(images))
parts = {"test": order[:400], "validation": order[400:500], "train": order[500:]}
forms = {
    "pixels": images.reshape(-1, 64, 1),
    "patches": images.reshape(-1, 4, 2, 4, 2).swapaxes(2, 3).reshape(-1, 16, 4),
}
for form, values in forms.items():
    for part, rows in parts.items():
        lines = (
            json.dumps({"features": values[row].tolist(), "label": str(digits.target[row])})
            for row in rows
        )
        (work / f"{form}-{part}.jsonl").write_text("\n".join(lines))
print(", ".join(f"{part}: {len(rows):,} images" for part, rows in parts.items()))

# %% [markdown]
# ## Train
#
# `quick-classify` with other data and fewer steps. On the command line: `linformer train quick-classify
# data.train=pixels-train.jsonl data.features=features ...`. Nothing was tuned for any of the three.

# %%
MODELS = {
    "patches, full (ViT)": ("patches", "full"),
    "pixels, full": ("pixels", "full"),
    "pixels, Linformer k 16": ("pixels", "linear"),
}
SEEDS, STEPS, EVERY = (0, 1), 500, 100
curves: dict[str, list[list[float]]] = {name: [] for name in MODELS}
accuracy: dict[str, list[float]] = {name: [] for name in MODELS}
runs = {}
for name, (form, projection) in MODELS.items():
    for seed in SEEDS:
        data = [f"data.{part}={work}/{form}-{part}.jsonl" for part in parts]
        settings = load(
            Path("quick-classify"),
            [*data, f"run={work}/{form}-{projection}-{seed}", f"seed={seed}", "train.threads=1",
             f"data.cache={work}/cache", "data.features=features", f"train.steps={STEPS}",
             f"data.max_length={forms[form].shape[1]}", f"model.projection={projection}",
             f"train.log_every={STEPS}", f"train.eval_every={EVERY}", f"train.save_every={STEPS}"],
        )  # fmt: skip
        run = train(settings)
        log = map(json.loads, (run.path / "metrics.jsonl").read_text().splitlines())
        curves[name].append([row["validation"]["accuracy"] for row in log if "validation" in row])
        accuracy[name].append(run.evaluation()["metrics"]["accuracy"])
        runs.setdefault(name, run)
for name, values in accuracy.items():
    model = load_pretrained(LinformerForSequenceClassification, runs[name].model_folder("best"))
    shown = ", ".join(f"{value:.3f}" for value in values)
    print(f"{name:24} test accuracy {shown}; {model.num_parameters():,} parameters")

# %% [markdown]
# `linformer predict` takes an image as a JSON list:

# %%
row = parts["test"][0]
(answer,) = predict_texts(
    runs["pixels, Linformer k 16"],
    [json.dumps(forms["pixels"][row].tolist())],
    options=Options(top=3),
)
print(f"a {digits.target[row]}:", answer.answers, answer.tokens())

# %% [markdown]
# ## Larger images
#
# 64 pixels are too few to save time. The same encoders, untrained, on larger images, in turn: how long does
# one image take?

# %%
SIDES = (8, 16, 32, 64)
times: dict[str, list[float]] = {name: [] for name in MODELS}
for side in SIDES:
    calls = {}
    for name, (form, projection) in MODELS.items():
        n = side**2 // (4 if form == "patches" else 1)
        encoder = LinformerEncoder(
            dim=64, depth=2, num_heads=4, ff_dim=128, max_length=n, k=16, projection=projection
        ).eval()
        x = torch.randn(1, n, 64)
        calls[name] = lambda encoder=encoder, x=x: encoder(x)
    with torch.no_grad():
        for name, timing in alternate(calls, rounds=5).items():
            times[name].append(1000 * (timing.best or float("nan")))
for name, values in times.items():
    shown = "".join(f"  {s} × {s}: {t:.1f} ms" for s, t in zip(SIDES, values, strict=True))
    print(f"{name:24}{shown}")

# %% [markdown]
# ## The picture
#
# In 500 steps the Linformer on pixels is as good as the ViT on patches, and full attention to pixels learns
# slowest. None of them is trained to the end. With 64 pixels nothing is saved; at 64 × 64 the Linformer reads
# 4,096 pixels in less time than the ViT reads 1,024 patches, and full attention takes about twenty times as long.
#
# Each of the 16 rows of E is a weighted sum of all pixels, drawn here as an image. After so few steps the rows still
# look like the random numbers that they were at the start.

# %%
model = load_pretrained(
    LinformerForSequenceClassification, runs["pixels, Linformer k 16"].model_folder("best")
)
E = next(p for p in model.parameters() if p.shape[-2:] == (16, 64)).detach().reshape(-1, 8, 8)[:16]
figure = plt.figure(figsize=(11.5, 4.1), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=(2.3, 1))
a, b = left.subplots(1, 2)
steps = range(EVERY, STEPS + 1, EVERY)
for name in MODELS:
    values = np.array(curves[name])
    label = f"{name}: test {np.mean(accuracy[name]):.1%}"
    a.plot(steps, values.mean(0), marker="o", markersize=3, label=label)
    a.fill_between(steps, values.min(0), values.max(0), alpha=0.15)
    b.plot(SIDES, times[name], marker="o", markersize=3, label=name)
a.set(title="Validation accuracy, two seeds", xlabel="step", ylim=(None, 1))
a.legend(fontsize=8, loc="lower right")
b.set(title="Time of an image (one thread)", xlabel="pixels on each side", ylabel="ms")
b.set(xscale="log", yscale="log")
b.set_xticks(SIDES, [str(side) for side in SIDES])
b.minorticks_off()
b.legend(fontsize=8)
limit = float(E.abs().max())
for matrix, cell in zip(E, right.subplots(4, 4).flat, strict=True):
    cell.imshow(matrix, cmap="RdBu", vmin=-limit, vmax=limit)
    cell.set_axis_off()
right.suptitle("Rows of E as images (first layer)")
Path("pictures").mkdir(exist_ok=True)
figure.savefig("pictures/an-image-as-pixels.png", dpi=110)
