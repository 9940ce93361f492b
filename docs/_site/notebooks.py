"""The notebooks as pages of the site: text, code and the picture that each ends in."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from typing import Any

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

FOLDER = Path(__file__).parents[2] / "notebooks"
CELL = re.compile(r"^# %%( \[markdown\])?\n", re.MULTILINE)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add a page for each notebook, and its picture."""
    for path in sorted(FOLDER.glob("*.py")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=as_page(path)))
    for picture in sorted(FOLDER.glob("pictures/*.png")):
        name = f"notebooks/pictures/{picture.name}"
        files.append(File.generated(config, name, abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **others: Any) -> str:
    """List the notebooks with their pictures on their first page."""
    if page.file.src_uri != "guides/notebooks.md":
        return markdown
    parts = []
    for path in sorted(FOLDER.glob("*.py")):
        title, picture = title_and_picture(path)
        link = f"../notebooks/{path.stem}.md"
        parts.append(f"## [{title}]({link})\n\n![{title}](../notebooks/pictures/{picture})\n")
    return "\n".join([markdown, *parts])


def title_and_picture(path: Path) -> tuple[str, str]:
    """The first heading of a notebook and the file that its last cell writes."""
    text = path.read_text(encoding="utf-8")
    title = re.search(r"^# # (.+)$", text, re.MULTILINE)
    picture = re.search(r'savefig\("pictures/([\w-]+\.png)"', text)
    assert title is not None
    assert picture is not None
    return title[1], picture[1]


def as_page(path: Path) -> str:
    """Cells of a jupytext file in Markdown, and the picture after the last one."""
    _, *cells = CELL.split(path.read_text(encoding="utf-8"))
    parts = []
    for markdown, cell in zip(cells[::2], cells[1::2], strict=True):
        if markdown:
            parts.append(re.sub(r"^# ?", "", cell.strip(), flags=re.MULTILINE))
        else:
            parts.append(f"```python\n{cell.strip()}\n```")
    title, picture = title_and_picture(path)
    parts.insert(1, f"The file is `notebooks/{path.name}`; its picture is at the end of this page.")
    return "\n\n".join([*parts, f"![{title}](pictures/{picture})"]) + "\n"
