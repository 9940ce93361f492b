"""YAML as users write it: `1e-4` is a number, a key given twice is an error, nothing runs code."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml

from ..errors import UserError

if TYPE_CHECKING:
    from collections.abc import Hashable

_FLOAT = re.compile(
    r"""^(?:[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?(?:[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)
    |\.[0-9_]+(?:[eE][-+]?[0-9]+)?
    |[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$""",
    re.VERBOSE,
)


class _Loader(yaml.SafeLoader):
    """SafeLoader with the numbers of YAML 1.2, refusing a mapping that names a key twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, (dict, list)):
                continue  # unhashable: the base class says so
            if key in seen:
                raise UserError(
                    f"the key {key!r} stands twice, line {key_node.start_mark.line + 1}."
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


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
