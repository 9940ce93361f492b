"""An exported model in the place of a run's own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from ..errors import UserError
from ..export.runtime import OnnxModel

if TYPE_CHECKING:
    from pathlib import Path


class OnnxInstead:
    """What `predict` asks of a model, answered by onnxruntime."""

    device = torch.device("cpu")

    def __init__(self, path: Path, like: type, config: Any) -> None:
        self.graph = OnnxModel(path)
        self.config = config
        made_of = self.graph.facts.get("class")
        if made_of != like.__name__:
            raise UserError(f"{path} was made of a {made_of}: this run's model is {like.__name__}.")

    def __call__(self, **inputs: torch.Tensor) -> SimpleNamespace:
        outputs = self.graph(**_arrays(inputs))
        return SimpleNamespace(**{name: torch.from_numpy(y) for name, y in outputs.items()})

    def generate(
        self,
        *,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        max_new_tokens: int,
        do_sample: bool,
        temperature: float = 1.0,
        num_beams: int = 1,
        length_penalty: float = 1.0,
    ) -> torch.Tensor:
        """As transformers' generate: a causal model gives the prompt too."""
        made = self.graph.generate(
            **_arrays({"input_ids": input_ids, "attention_mask": attention_mask}),
            max_new_tokens=max_new_tokens,
            temperature=temperature if do_sample else 0.0,
            num_beams=num_beams,
            length_penalty=length_penalty,
            seed=int(torch.randint(2**31, ())),
        )
        new = torch.from_numpy(made)
        return torch.cat((input_ids, new), dim=1) if self.graph.kind == "causal" else new


def _arrays(inputs: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {name: tensor.numpy() for name, tensor in inputs.items()}
