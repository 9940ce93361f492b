"""YAML as users write it: `1e-4` is a number, a key given twice is an error, nothing runs code.

What YAML allows and a configuration has no use for is refused: several documents, nesting beyond
`DEPTH`, a value that contains itself, aliases that expand to more than `VALUES` values.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml

from ..errors import UserError, reason_of

if TYPE_CHECKING:
    from collections.abc import Hashable

DEPTH = 50
VALUES = 100_000
BITS = 1024  # of a whole number: more cannot even be printed in an error

MERGE = "tag:yaml.org,2002:merge"

_FLOAT = re.compile(
    r"""^(?:[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?(?:[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)
    |\.[0-9_]+(?:[eE][-+]?[0-9]+)?
    |[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$""",
    re.VERBOSE,
)


class _Loader(yaml.SafeLoader):
    """SafeLoader with the numbers of YAML 1.2, refusing a mapping that names a key twice."""

    def compose_node(self, parent: Any, index: Any) -> yaml.Node | None:
        """Refuse deep nesting here, where PyYAML recurses."""
        self.depth = getattr(self, "depth", 0) + 1
        if self.depth > DEPTH:
            line = self.peek_event().start_mark.line + 1
            raise UserError(f"nested more than {DEPTH} levels deep, line {line}.")
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None:
            _check_size(node)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            merged = key_node.tag == MERGE
            key = "<<" if merged else self.construct_object(key_node, deep=True)
            if isinstance(key, dict | list):
                continue  # unhashable: the base class says so
            if key in seen:
                raise UserError(
                    f"the key {key!r} stands twice, line {key_node.start_mark.line + 1}."
                )
            seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Values of YAML's own types that do not parse, such as the date 2020-13-45."""
        try:
            value = super().construct_object(node, deep)
        except (yaml.YAMLError, UserError):
            raise
        except Exception as error:
            line = node.start_mark.line + 1
            raise UserError(f"not a valid value ({reason_of(error)}), line {line}.") from error
        if isinstance(value, int) and value.bit_length() > BITS:
            raise UserError(f"a number of over 300 digits, line {node.start_mark.line + 1}.")
        return value


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


def parse(text: str) -> Any:
    """The value a piece of YAML stands for."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        what = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UserError(f"not valid YAML: {what}{where}.") from error


def dump(value: Any) -> str:
    """YAML with the keys in their own order."""
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)


def _check_size(root: yaml.Node) -> None:
    """Count the values with every alias expanded; a node that contains itself has no end."""
    sizes: dict[int, int | None] = {}  # None: being counted

    def size(node: yaml.Node) -> int:
        place = id(node)
        if place not in sizes:
            sizes[place] = None
            inner = node.value if isinstance(node, yaml.CollectionNode) else []
            parts = [part for item in inner for part in (item if _is_pair(item) else [item])]
            sizes[place] = 1 + sum(size(part) for part in parts)
        known = sizes[place]
        line = node.start_mark.line + 1
        if known is None:
            raise UserError(f"a value contains itself, line {line}.")
        if known > VALUES:
            raise UserError(f"aliases expand to more than {VALUES:,} values, line {line}.")
        return known

    size(root)


def _is_pair(item: object) -> bool:
    return isinstance(item, tuple)  # of key and value, in a mapping
