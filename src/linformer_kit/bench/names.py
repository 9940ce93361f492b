"""What can be measured, by name. Imports no torch: the command line shows these in its help."""

from __future__ import annotations

from typing import Literal

LayerKind = Literal["attention", "encoder"]
Mode = Literal["inference", "training", "dropout"]  # dropout: training with it
Shape = Literal["encoder", "encoder-decoder"]  # of `bench budget`
What = Literal["equality", "time", "memory"]  # of `bench peers`

CONTESTANTS = ("linformer-kit", "full", "linformer", "linformer-pytorch")  # built in contestants.py
PEERS = (  # built in peer_models.py
    "linformer-kit",
    "linformer",
    "linformer-pytorch",
    "performer-pytorch",
    "nystrom-attention",
    "BERT (SDPA)",
    "ModernBERT",
    "Longformer",
    "BigBird",
    "Nyströmformer",
    "FNet",
)

GEMM_SIZE = 2048  # of the product that rates are compared with; a larger one is not faster
