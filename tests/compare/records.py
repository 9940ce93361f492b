"""Records as a comparison keeps them, made up."""

from __future__ import annotations

from typing import Any


def record(
    variant: str,
    perplexity: float,
    *,
    full: bool = False,
    seed: int = 0,
    left: bool = True,
    seconds: float = 1.0,
    **more: Any,
) -> dict[str, Any]:
    metrics = {"perplexity": perplexity, "loss": 1.0}
    return {
        "variant": variant,
        "seed": seed,
        "full": full,
        "set": {},
        "task": "mlm",
        "n": 32,
        "metrics": metrics,
        "baseline": {"metrics": {"perplexity": 40.0, "loss": 3.7}, "left": left},
        "step_seconds": seconds,
        "curve": [{"step": 1, "seconds": 0.1, **metrics}, {"step": 2, "seconds": 0.2, **metrics}],
        "parameters": 1000,
        "projection_parameters": 0 if full else 100,
        "memory": 2_000_000,
        **more,
    }
