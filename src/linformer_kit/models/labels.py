"""Labels of a wrong shape, type or value raise an error: a loss of them would mean nothing.

Values are read only where that costs nothing: on a CPU, when nothing is compiled or transformed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..core.cpu.predicate import eager_on_cpu
from .loss import IGNORED

if TYPE_CHECKING:
    from torch import Tensor

    from .config import LinformerConfig


def token_labels(labels: Tensor, rows: Tensor, *, limit: int, limit_name: str) -> Tensor:
    """Labels (B, N) of rows (B, N, ...): whole numbers below `limit`, or -100."""
    shape = tuple(rows.shape[:2])
    if tuple(labels.shape) != shape:
        raise ValueError(
            f"labels must have shape (batch, length) = {shape}, one for each token: got "
            f"{tuple(labels.shape)}. Pad them with {IGNORED} as the inputs are padded."
        )
    return class_numbers("labels", labels, limit=limit, limit_name=limit_name)


def choice_labels(labels: Tensor, logits: Tensor) -> Tensor:
    """Labels (B) of logits (B, C): which of the choices it is."""
    batch, choices = logits.shape
    if tuple(labels.shape) != (batch,):
        raise ValueError(
            f"labels must have shape (batch) = ({batch},), the number of one choice for each "
            f"sample: got {tuple(labels.shape)}."
        )
    return class_numbers("labels", labels, limit=choices, limit_name="the number of choices")


def span_positions(name: str, positions: Tensor, logits: Tensor) -> Tensor:
    """Positions (B) in a sequence; those at its end or past it are left out of the loss."""
    batch = logits.shape[0]
    if tuple(positions.shape) not in ((batch,), (batch, 1)):
        raise ValueError(
            f"{name} must have shape (batch) = ({batch},), one position for each sample: got "
            f"{tuple(positions.shape)}."
        )
    positions = _whole_numbers(name, positions).view(batch)
    if eager_on_cpu(positions) and positions.numel() and int(positions.min()) < 0:
        raise ValueError(
            f"{name} must be at least 0: got {int(positions.min())}. A position past the end of "
            "the sequence adds nothing to the loss."
        )
    return positions


def sequence_labels(labels: Tensor, logits: Tensor, config: LinformerConfig) -> Tensor:
    """Labels of sequences with logits (B, C), by `problem_type` or by what they are."""
    batch, classes = logits.shape
    problem = config.problem_type
    if problem is None:
        whole = not labels.is_floating_point()
        problem = "single_label_classification" if whole else "multi_label_classification"
        problem = "regression" if classes == 1 else problem
    one_each = ((batch,), (batch, 1))
    if problem == "single_label_classification":
        if tuple(labels.shape) not in one_each:
            raise ValueError(
                f"labels must have shape (batch) = ({batch},), one class for each sample: got "
                f"{tuple(labels.shape)}. For several classes at once set "
                "problem_type='multi_label_classification'."
            )
        return class_numbers("labels", labels.view(batch), limit=classes, limit_name="num_labels")
    allowed = one_each if classes == 1 else ((batch, classes),)
    if tuple(labels.shape) not in allowed:
        raise ValueError(
            f"labels must have shape (batch, num_labels) = ({batch}, {classes}) for "
            f"problem_type={problem!r}: got {tuple(labels.shape)}."
        )
    return _numbers(labels.view(batch, classes), logits, unit=problem != "regression")


def class_numbers(name: str, labels: Tensor, *, limit: int, limit_name: str) -> Tensor:
    """Labels as int64: each at least 0 and below `limit`, or -100."""
    labels = _whole_numbers(name, labels)
    if eager_on_cpu(labels) and labels.numel():
        wrong = labels[((labels < 0) & (labels != IGNORED)) | (labels >= limit)]
        if wrong.numel():
            raise ValueError(
                f"{name} must be at least 0 and below {limit_name}={limit}, or {IGNORED} to be "
                f"left out: got {int(wrong[0])}."
            )
    return labels


def _whole_numbers(name: str, labels: Tensor) -> Tensor:
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(
            f"{name} must be whole numbers: got {labels.dtype}. Pass {name}.long() if they are."
        )
    return labels.long()


def _numbers(labels: Tensor, logits: Tensor, *, unit: bool) -> Tensor:
    """Labels in the type of the logits; from 0 to 1 if `unit`."""
    labels = labels.to(logits.dtype)
    if eager_on_cpu(labels) and labels.numel():
        if not bool(labels.isfinite().all()):
            raise ValueError("labels must be finite: got NaN or infinity.")
        low, high = float(labels.min()), float(labels.max())
        if unit and not (low >= 0 and high <= 1):
            raise ValueError(
                "labels must be from 0 to 1 for problem_type='multi_label_classification': got "
                f"{low if low < 0 else high:g}."
            )
    return labels
