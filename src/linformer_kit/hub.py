"""Names of the Hugging Face hub: refused at once where the hub cannot be reached.

Without this, a misspelled folder is taken for a name of the hub, and a machine without a network
retries for minutes before it says so.
"""

from __future__ import annotations

from pathlib import Path

from .errors import UserError, reason_of, user_input

TIMEOUT = 5.0  # seconds


def require_hub(name: str, file: str) -> None:
    """Refuse a name that is neither a path here, nor in the hub's cache, nor on a reachable hub.

    `file` is what would be loaded, such as config.json.
    """
    from huggingface_hub import constants, get_session, try_to_load_from_cache

    with user_input(f"cannot look for {name}"):  # a path may be too long for the system
        here = Path(name).expanduser().exists()
    if here or constants.HF_HUB_OFFLINE:
        return
    try:
        if isinstance(try_to_load_from_cache(name, file), str):
            return
    except ValueError as error:
        raise UserError(
            f"{name} is not a file or folder here, and no name of the hub: {reason_of(error)}"
        ) from error
    try:
        get_session().head(constants.ENDPOINT, timeout=TIMEOUT)
    except Exception as error:  # whatever the HTTP library of the installed version raises
        raise UserError(
            f"{name} is not a file or folder here, and the Hugging Face hub cannot be reached to "
            f"look for it ({reason_of(error)})."
        ) from error
