"""What is said about a needle test."""

from __future__ import annotations

import pytest

from linformer_kit.evidence.analysis.needle_view import in_words


def record_of(accuracies: dict[int, float]) -> dict[str, object]:
    cells = [
        {"length": length, "accuracy": [value], "tokens_read": 9, "tokens_total": 9, "pieces": 1}
        for length, value in accuracies.items()
    ]
    return {
        "kind": "needle",
        "model": "minilm",
        "longest": 512,
        "policy": "error",
        "candidates": 20,
        "depths": [0.0],
        "parts": [{"haystack": "passkey", "lengths": cells}],
    }


@pytest.mark.parametrize(
    ("accuracies", "said"),
    [
        ({256: 1.0, 512: 0.95, 1024: 0.9}, "passkey: up to 512 tokens."),
        ({256: 0.6, 512: 0.96, 1024: 0.9, 2048: 1.0}, "passkey: at 512 and 2,048 tokens alone."),
        ({256: 0.6, 512: 0.94}, "passkey: at no length."),
    ],
)
def test_a_shorter_length_that_is_missed_is_not_counted_as_found(accuracies, said):
    assert in_words(record_of(accuracies)).endswith(said)
