"""What happens to a text that is longer than a model reads: the policies, and where each has a
meaning.

error     the text is refused, with its number of tokens
truncate  the first tokens are read (of a prompt that is continued, the last ones), and it is said
chunk     overlapping pieces are read, and their answers merged
extend    the model is extended: positions and E are interpolated to the length of the text
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from ..errors import UserError, one_of

if TYPE_CHECKING:
    from .schema import RunConfig, Task

OnOverflow = Literal["error", "truncate", "chunk", "extend"]
Use = Literal["train", "evaluate", "predict"]
POLICIES: tuple[OnOverflow, ...] = get_args(OnOverflow)

# The treatment of long texts where none is named.
DEFAULTS: dict[Task, OnOverflow] = {
    "mlm": "chunk",  # rows of consecutive tokens
    "clm": "chunk",
    "classify": "truncate",
    "tag": "chunk",
    "embed": "chunk",
    "translate": "truncate",
}
# Where predict cannot do what a run does with its data.
PREDICT_DEFAULTS: dict[Task, OnOverflow] = {"clm": "truncate"}
# Of pairs of texts, of which no part belongs to a part of the other.
PAIRS_DEFAULT: OnOverflow = "truncate"

_IN_TRAINING = (
    "extend is for models that are trained already (evaluate and predict). A model that is to be "
    "trained reads as far as data.max_length says: raise it, or use {others}."
)
# (use, policy, task), where None is every task -> why the combination has no meaning.
_NO_MEANING: dict[tuple[Use, OnOverflow, Task | None], str] = {
    ("train", "extend", None): _IN_TRAINING,
    ("train", "chunk", "translate"): (
        "which part of a translation belongs to a piece of its source is not known. Use {others}, "
        "or cut the pairs into sentences."
    ),
    ("evaluate", "chunk", "translate"): (
        "which part of a translation belongs to a piece of its source is not known. Use {others}."
    ),
    ("predict", "chunk", "clm"): (
        "a text is continued from its end, and there is nothing to merge. Use {others}: truncate "
        "keeps the end of the text."
    ),
}
# What an overlap of pieces has no effect on.
WITHOUT_OVERLAP: tuple[Task, ...] = ("clm", "translate")


def why_refused(use: Use, policy: OnOverflow, task: Task) -> str | None:
    """Why a policy has no meaning in a task, or None if it has one."""
    for known in (task, None):
        reason = _NO_MEANING.get((use, policy, known))
        if reason is not None:
            allowed = [p for p in POLICIES if p != policy and not _refused(use, p, task)]
            return reason.format(others=" or ".join(allowed))
    return None


def _refused(use: Use, policy: OnOverflow, task: Task) -> bool:
    return (use, policy, task) in _NO_MEANING or (use, policy, None) in _NO_MEANING


def policy_for(use: Use, config: RunConfig, asked: str | None = None) -> OnOverflow:
    """The policy of a command for a run: the one asked for, the run's, or the default.

    One that has no meaning is refused where it was asked for. A run's own that has none in
    `predict` gives way to the default there.
    """
    task = config.task
    if asked is not None:
        asked = one_of("--on-overflow", asked, POLICIES)
        if reason := why_refused(use, asked, task):
            raise UserError(f"--on-overflow {asked} has no meaning in the task {task!r}: {reason}")
        return asked
    own = config.data.on_overflow or DEFAULTS[task]
    if use == "predict":
        return PREDICT_DEFAULTS[task] if why_refused(use, own, task) else own
    pairs = task == "embed" and config.data.anchor is not None
    return PAIRS_DEFAULT if pairs and config.data.on_overflow is None else own
