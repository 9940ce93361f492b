"""Prints digests of outputs, gradients and trained weights, to compare two trees on one machine.

`--quick` leaves out the trained weights.
"""

import sys
import tempfile
from pathlib import Path

from . import contents


def main() -> None:
    found = contents.outputs()
    if "--quick" not in sys.argv:
        with tempfile.TemporaryDirectory() as folder:
            found |= contents.runs(Path(folder))
    for name, made in found.items():
        print(contents.digest(made), name)


if __name__ == "__main__":
    main()
