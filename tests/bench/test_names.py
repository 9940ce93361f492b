"""The names that the help shows are those that can be built."""

from __future__ import annotations

from linformer_kit.bench import contestants, names, peer_models


def test_every_name_can_be_built_and_the_others_have_a_name():
    assert tuple(contestants.CONTESTANTS) == names.CONTESTANTS
    assert tuple(peer_models.PEERS) == names.PEERS
