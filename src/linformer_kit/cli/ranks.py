"""Which of torchrun's processes prints a line that several of them would print.

Every process finds a mistake in a configuration. Rank 0 prints it. The others wait, and exit
without a message: if one exited first, torchrun would stop rank 0 before it has printed. If rank 0
does not print the line within a few seconds, the first of the others does.
"""

from __future__ import annotations

import os
import time
import zlib
from datetime import timedelta

WAIT = 8.0  # seconds, for rank 0


def first_to_say(line: str) -> bool:
    """Whether this process is the one that prints this line."""
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
    except Exception:  # no store: better printed twice than not at all
        return True
