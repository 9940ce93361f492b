"""What the README and the documentation show runs, exists and links to something."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [README, ROOT / "CONTRIBUTING.md", *DOCS]
SOURCE = ROOT / "src/linformer_kit"
ARCHITECTURE = (ROOT / "docs/design/architecture.md").read_text(encoding="utf-8")
FENCE = re.compile(
    r"(?:^<!-- no-run: (?P<reason>[^>]+) -->\n+)?^```(?P<language>\w*)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
NOT_RUN = 2  # Python blocks marked with <!-- no-run: reason -->


class Block(NamedTuple):
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    code: str
    reason: str | None  # why it is not run


def blocks(page: Path, *languages: str) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = [
        Block(
            page,
            text.count("\n", 0, match.start("code")) + 1,
            match["language"],
            match["code"],
            match["reason"],
        )
        for match in FENCE.finditer(text)
    ]
    return [block for block in found if block.language in languages]


def without_blocks(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


WITH_PYTHON = [page for page in PAGES if blocks(page, "python", "py")]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=name_of)
def test_the_python_of_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # The page on Keras sets it; what it was before is restored.
    monkeypatch.setenv("KERAS_BACKEND", os.environ.get("KERAS_BACKEND", "torch"))
    names: dict[str, Any] = {}
    shown = blocks(page, "python", "py")
    trains = any(".backward(" in block.code for block in shown)
    with torch.set_grad_enabled(trains):  # a graph over a hundred steps of a decoder takes long
        for block in shown:
            if block.reason is None:
                code = "\n" * (block.line - 1) + block.code  # tracebacks have the page's lines
                exec(compile(code, name_of(page), "exec"), names)
    if page == README:
        assert names["y"].shape == (2, 1000, 512)


def test_every_python_block_that_is_not_run_is_counted():
    found = [block for page in PAGES for block in blocks(page, "python", "py")]
    assert len(found) > 25
    assert sum(block.reason is not None for block in found) == NOT_RUN


def test_the_readme_is_short():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 180


# Commands


class Command(NamedTuple):
    """A call of `linformer` on a page."""

    page: Path
    words: tuple[str, ...]
    complete: bool  # as typed into a shell; else a mention in the text

    def __str__(self) -> str:
        return f"{name_of(self.page)}: {' '.join(self.words)}"


def commands() -> list[Command]:
    found = []
    for page in PAGES:
        for block in blocks(page, "bash", "sh"):
            for line in block.code.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if "linformer_kit.cli" in words:
                    words = ["linformer", *words[words.index("linformer_kit.cli") + 1 :]]
                if words[:1] == ["linformer"]:
                    found.append(Command(page, tuple(words[1:]), complete=True))
        for text in re.findall(r"`(linformer(?:\s[^`]*)?)`", without_blocks(page)):
            words = shlex.split(" ".join(text.split()))
            found.append(Command(page, tuple(words[1:]), complete=False))
    makefile = ROOT / "Makefile"
    for line in re.findall(
        r"^\t\$\(BIN\)/linformer (.*)$", makefile.read_text(encoding="utf-8"), flags=re.MULTILINE
    ):
        found.append(Command(makefile, tuple(shlex.split(line)), complete=True))
    return found


COMMANDS = commands()


def resolved(words: tuple[str, ...]) -> tuple[Any, list[str]]:
    """The command of the command line that these words call, and the rest of the words."""
    typer_main = pytest.importorskip("typer.main")
    from linformer_kit.cli.app import app

    command, rest = typer_main.get_command(app), list(words)
    while rest and hasattr(command, "commands") and not rest[0].startswith("-"):
        assert rest[0] in command.commands, f"no command {rest[0]!r}"
        command = command.commands[rest.pop(0)]
    return command, rest


def test_there_are_commands_to_check():
    assert sum(command.complete for command in COMMANDS) > 30
    assert {"train", "compare", "bench", "report"} <= {c.words[0] for c in COMMANDS if c.words}


@pytest.mark.parametrize("shown", COMMANDS, ids=str)
def test_every_command_and_option_exists(shown):
    command, rest = resolved(shown.words)
    if shown.complete and not hasattr(command, "commands"):
        command.make_context("linformer", list(rest))  # parses and converts; runs nothing
        return
    offered = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    for word in rest:
        if word.startswith("--"):
            assert word.partition("=")[0] in {*offered, "--help"}


@pytest.mark.parametrize(
    "shown",
    [c for c in COMMANDS if c.complete and c.words[0] in ("train", "compare", "prepare")],
    ids=str,
)
def test_every_configuration_and_key_that_a_command_names_exists(shown, monkeypatch):
    monkeypatch.chdir(ROOT)
    pytest.importorskip("pydantic")
    from linformer_kit.config.load import load

    command, rest = resolved(shown.words)
    given = command.make_context("linformer", list(rest)).params
    overrides, config = given["overrides"] or [], Path(given["config"])
    load(config, overrides)
    for vary in given.get("vary") or []:
        key, _, values = vary.partition("=")
        for value in values.split(","):
            load(config, [*overrides, f"{key}={value}"])


def test_every_make_target_exists():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"(?:`|^)make ([a-z-]+)", text, flags=re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), (page, target)


def test_every_extra_exists():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = text.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    known = set(re.findall(r"^(\w+) = \[", section, flags=re.MULTILINE))
    for page in PAGES:
        for extras in re.findall(r"pip install '\.\[(.*?)\]'", page.read_text(encoding="utf-8")):
            assert set(extras.split(",")) <= known, page


# Links and names


def anchors(page: Path) -> set[str]:
    """The anchors of the headings, as GitHub and mkdocs make them."""
    headings = re.findall(r"^#+ (.*)$", without_blocks(page), flags=re.MULTILINE)
    made = set()
    for heading in headings:
        text = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower())
        made |= {text.replace(" ", "-"), re.sub(r"[-\s]+", "-", text).strip("-")}
    return made


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files_and_headings(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", without_blocks(page)):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), target
        if file.suffix == ".md" and anchor:
            assert anchor in anchors(file), target


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_a_page_names_exist(page):
    """`core/plan.py` is below the package, `tests/core/oracle.py` below the root."""
    for name in re.findall(r"`([\w./-]+/[\w-]+\.(?:py|yaml))`", without_blocks(page)):
        assert (ROOT / name).is_file() or (SOURCE / name).is_file(), name


@pytest.mark.parametrize("page", [p for p in PAGES if "design" in p.parts], ids=name_of)
def test_names_in_a_file_that_a_page_mentions_exist(page):
    """`visible_scale` in `core/shortening.py`"""
    pattern = r"`([\w.]+)`(?:, `[\w.]+`)* in `([\w/]+\.py)`"
    for name, file in re.findall(pattern, without_blocks(page)):
        path = ROOT / file if (ROOT / file).is_file() else SOURCE / file
        code = path.read_text(encoding="utf-8")
        last = name.rpartition(".")[2]
        assert re.search(rf"^ *(?:def|class) {last}\b|^{last}\b", code, flags=re.MULTILINE), name


def listed_files() -> dict[str, list[str]]:
    """The tree of the page on the architecture: the files listed in each folder of the package."""
    tree = ARCHITECTURE.partition("src/linformer_kit/\n")[2].partition("```")[0]
    found: dict[str, list[str]] = {".": []}
    path: list[str] = []
    for line in tree.splitlines():
        match = re.match(r"^( {2,})([\w.]+/?)(?: |$)", line)
        if match is None:
            if not line.startswith(" "):
                break
            continue  # the second line of a description
        depth, name = len(match[1]) // 2 - 1, match[2]
        del path[depth:]
        if name.endswith("/"):
            path.append(name.rstrip("/"))
            found["/".join(path)] = []
        else:
            found["/".join(path) or "."].append(name)
    return found


def test_every_folder_of_the_package_is_on_the_page_about_the_architecture():
    found = (path for path in SOURCE.iterdir() if path.is_dir())
    folders = {path.name for path in found if path.name != "__pycache__"}
    assert folders == {name for name in listed_files() if name != "." and "/" not in name}


def test_the_rows_of_rooms_on_the_page_are_those_of_the_import_contract():
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    layers = settings["importlinter"]["contracts"][0]["layers"]
    table = ARCHITECTURE.partition("| rooms, top to bottom |")[2].partition("\n\n")[0]
    rows = [re.findall(r"`(\w+)`", line.split("|")[1]) for line in table.splitlines()[2:]]
    assert rows == [layer.split(" | ") for layer in layers]


@pytest.mark.parametrize("folder", [name for name, files in listed_files().items() if files])
def test_the_files_on_the_page_about_the_architecture_are_those_of_the_folder(folder):
    there = {path.name for path in (SOURCE / folder).glob("*.py")} - {"__init__.py"}
    assert sorted(listed_files()[folder]) == sorted(there)


def test_every_key_of_a_configuration_is_in_the_guide():
    pytest.importorskip("pydantic")
    from linformer_kit.config.schema import RunConfig

    guide = (ROOT / "docs/guides/training.md").read_text(encoding="utf-8")
    table = guide.partition("| key | default | meaning |")[2].partition("\n\n")[0]
    shown = set()
    for row in table.splitlines()[2:]:
        shown |= set(re.findall(r"`([\w.*]+)`", row.split("|")[1]))
    expected = {"model.*", "model.from"}
    for name, field in RunConfig.model_fields.items():
        section = getattr(field.annotation, "model_fields", None)
        if name != "model":
            expected |= {name} if section is None else {f"{name}.{key}" for key in section}
    assert shown == expected


def test_every_name_of_other_libraries_is_in_the_table():
    from linformer_kit.core.names import ABSENT, EQUIVALENT

    guide = (ROOT / "docs/guides/coming-from.md").read_text(encoding="utf-8")
    for library, heading in (
        ("linformer", "## From `linformer`\n"),
        ("linformer-pytorch", "## From `linformer-pytorch`\n"),
        ("torch.nn", "## From `nn.TransformerEncoder`\n"),
    ):
        section = guide.partition(heading)[2].partition("\n## ")[0]
        names = {*EQUIVALENT[library], *ABSENT.get(library, {})}
        assert {name for name in names if f"`{name}" not in section} == set()


@pytest.mark.parametrize("page", ["docs/guides/choosing.md", "docs/guides/attention.md"])
def test_every_kind_of_projection_is_in_the_table(page):
    from linformer_kit.core.projection_kinds import PROJECTIONS

    rows = [
        line
        for line in (ROOT / page).read_text(encoding="utf-8").splitlines()
        if line.startswith("| `")
    ]
    for kind in PROJECTIONS:
        assert any(f"`{kind}`" in row for row in rows), kind


# The start page


def test_the_start_page_leads_to_every_guide():
    start = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    table = start.partition("## Where to go")[2].partition("\n## ")[0]
    guides = {path.name for path in (ROOT / "docs/guides").glob("*.md")}
    assert guides == set(re.findall(r"\(guides/([\w-]+\.md)[#)]", table)) | {"training.md"}
    for name in guides:
        assert f"guides/{name}" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_complexity_is_not_broken_over_lines(page):
    text = re.sub(r"`[^`\n]*`", "", without_blocks(page))
    for one in re.findall(r"(?<!\w)[OΘ]\((?:[^()]|\([^()]*\))*\)", text):
        if "/" not in one:
            assert not re.search(r"[ \n]", one), f"{one}: no-break spaces keep it on one line"


def test_the_files_of_the_first_reading_stay_short():
    """What a newcomer reads first, as the README says: a new option belongs beside these files."""
    core = ROOT / "src/linformer_kit/core"
    names = ("reference", "attention", "projection", "window", "encoder")
    lines = {name: len((core / f"{name}.py").read_text().splitlines()) for name in names}
    assert sum(lines.values()) <= 1425, lines
