"""The help of commands: plain text in two columns.

typer's own help reads brackets in help texts as markup, cuts long defaults at 80 columns, writes
`{RUN}` for an argument and <bool> for every flag. How depends on its version.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST = 30  # characters of the first column at most


class PlainHelp:
    """A command that writes its help itself."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        this: Any = self
        pieces = ["[OPTIONS]", *map(_usage, _params(this, ctx, "argument"))]
        return [*pieces, this.subcommand_metavar] if hasattr(this, "commands") else pieces

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write_usage(ctx.command_path, " ".join(self.collect_usage_pieces(ctx)))
        this: Any = self
        for paragraph in inspect.cleandoc(this.help or "").split("\n\n"):
            formatter.write("\n" + "".join(_wrapped(paragraph, formatter.width, indent=2)))
        arguments = [(_usage(param), param) for param in _params(self, ctx, "argument")]
        options = [(_option(param, ctx), param) for param in _params(self, ctx, "option")]
        sections = {
            "Arguments": [(name, _about(param, ctx)) for name, param in arguments],
            "Options": [(name, _about(param, ctx)) for name, param in options],
            "Commands": [
                (name, inspect.cleandoc(command.help or "").split("\n\n")[0])
                for name, command in getattr(self, "commands", {}).items()
            ],
        }
        for title, rows in sections.items():
            if rows:
                formatter.write(f"\n{title}:\n")
                formatter.write("".join(_columns(rows, formatter.width)))


def _params(command: Any, ctx: Any, kind: str) -> list[Any]:
    params = command.get_params(ctx)
    return [p for p in params if p.param_type_name == kind and not getattr(p, "hidden", False)]


def _usage(param: Any) -> str:
    """An argument. A metavar that is given says itself what may be left out or repeated."""
    if param.metavar is not None:
        return str(param.metavar)
    name = param.name.upper().replace("_", "-")
    name = name if param.required else f"[{name}]"
    return f"{name}..." if param.nargs != 1 else name


def _option(param: Any, ctx: Any) -> str:
    """The names of an option and its kind of value; a flag has none."""
    name, _ = param.get_help_record(ctx)
    return re.sub(r"<(?:list\[)?([^\]]+?)\]?(?: range)?>$", r"<\1>", name)


def _about(param: Any, ctx: Any) -> str:
    return str(param.get_help_record(ctx)[1])


def _columns(rows: list[tuple[str, str]], width: int) -> Iterator[str]:
    column = min(FIRST, max(len(name) for name, _ in rows)) + 4
    for name, text in rows:
        lines = list(_wrapped(text, width, indent=column))
        first = f"  {name}"
        if len(first) + 2 > column:
            yield f"{first}\n"
        else:
            lines[0] = first.ljust(column) + lines[0][column:]
        yield from lines


def _wrapped(text: str, width: int, *, indent: int) -> Iterator[str]:
    """Lines that break between words only, so that every word can be copied."""
    lines = textwrap.wrap(
        " ".join(text.split()),
        width - indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
    for line in lines or [""]:
        yield f"{' ' * indent}{line}\n"
