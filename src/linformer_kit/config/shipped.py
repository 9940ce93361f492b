"""The configurations that come with the package, found by name: `linformer train quick-mlm`."""

from __future__ import annotations

from pathlib import Path

from ..errors import UserError, user_input

FOLDER = Path(__file__).parents[1] / "configs"


def names() -> list[str]:
    """The names of the shipped configurations."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def resolve(path: Path) -> Path:
    """The file a path or a name stands for: a file of the user first, then a shipped one."""
    shipped = FOLDER / f"{path.name.removesuffix('.yaml')}.yaml"
    if path.exists() or path.is_symlink() or len(path.parts) != 1 or not shipped.is_file():
        return path
    return shipped


def summary(name: str) -> str:
    """What a shipped configuration is for: its first comment."""
    first = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[0]
    return first.removeprefix("#").strip()


def copy(name: str, to: Path) -> Path:
    """Copy a shipped configuration to a new file, or into a folder."""
    name = name.removesuffix(".yaml")
    if name not in names():
        raise UserError(
            f"there is no shipped configuration {name!r}. There are: {', '.join(names())}."
        )
    target = to / f"{name}.yaml" if to.is_dir() else to
    text = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    try:
        with user_input(f"cannot write {target}"), target.open("x", encoding="utf-8") as file:
            file.write(text)
    except UserError as error:
        if isinstance(error.__cause__, FileExistsError):
            raise UserError(f"{target} exists and is left alone. Name another file.") from None
        raise
    return target
