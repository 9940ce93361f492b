"""Which of torchrun's processes says a line that several of them have to say.

A mistake in a configuration is found by every process. Rank 0 says it; the others wait for it, end
without a word, and so do not have rank 0 stopped by torchrun before it has spoken. What rank 0 does
not say within a few seconds is said by the first of the others.
"""

from __future__ import annotations

import os
import time
import zlib
from datetime import timedelta

WAIT = 8.0  # seconds, for rank 0


def first_to_say(line: str) -> bool:
    """Whether this process is the one that says this line."""
    rank, processes = (int(os.environ.get(name, "0")) for name in ("RANK", "WORLD_SIZE"))
    if processes < 2 or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return True
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    key = f"linformer-line-{attempt}-{zlib.crc32(line.encode())}"
    try:
        # torchrun's own store, which outlives its processes
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = TCPStore(address, port, timeout=timedelta(seconds=WAIT))
        end = time.monotonic() + WAIT
        while rank and not store.check([key]) and time.monotonic() < end:
            time.sleep(0.05)
        return store.add(key, 1) == 1
    except Exception:  # no store: better said twice than not at all
        return True
