"""Writes what is frozen: `python -m tests.frozen.write [FILE ...]`, by default all of it."""

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from . import artifacts, contents

MAKERS = {
    "commands": contents.commands,
    "routes": contents.routes,
    "state_dicts": contents.state_dicts,
    "outputs": lambda: {name: contents.numbers(made) for name, made in contents.outputs().items()},
    "runs": lambda: {name: contents.numbers(made) for name, made in _runs().items()},
}


def _runs() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return contents.runs(Path(folder))


def main() -> None:
    wanted = sys.argv[1:] or [*MAKERS, "artifacts"]
    contents.FILES.mkdir(exist_ok=True)
    for name in wanted:
        if name == "artifacts":
            shutil.rmtree(artifacts.FOLDER, ignore_errors=True)
            with tempfile.TemporaryDirectory() as folder:
                artifacts.write(Path(folder) / "artifacts")
                shutil.copytree(Path(folder) / "artifacts", artifacts.FOLDER)
            continue
        made = MAKERS[name]()
        lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(each)}" for key, each in made.items())
        (contents.FILES / f"{name}.json").write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()
