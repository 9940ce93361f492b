"""The schema as a page that loads nothing from another host and needs no script."""

from __future__ import annotations

import json
from html import escape
from typing import Any


def docs_page(schema: dict[str, Any]) -> str:
    """The routes of an OpenAPI schema, each with its keys and errors."""
    routes = "\n".join(
        _route(path, method, about)
        for path, methods in schema["paths"].items()
        for method, about in methods.items()
    )
    title = escape(schema["info"]["title"])
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}: routes</title>
<link rel="stylesheet" href="/page/docs.css">
</head>
<body>
<main>
<h1>{title} {escape(schema["info"]["version"])}</h1>
<p>{escape(schema["info"].get("summary", ""))} The schema for programs:
<a href="/openapi.json">/openapi.json</a>. The page to try models: <a href="/">/</a>.</p>
{routes}
</main>
</body>
</html>
"""


def _route(path: str, method: str, about: dict[str, Any]) -> str:
    parts = [f"<h2><code>{method.upper()} {escape(path)}</code></h2>"]
    parts.append(f"<p>{escape(about.get('summary', ''))}</p>")
    for kind, content in about.get("requestBody", {}).get("content", {}).items():
        parts.append(f"<h3>Body: {escape(kind)}</h3>{_keys(content['schema'])}")
    errors = {
        status: said
        for status, said in about.get("responses", {}).items()
        if status.startswith("4") and status != "422"
    }
    if errors:
        rows = "".join(
            f"<tr><td>{escape(status)}</td><td>{escape(said['description'])}</td></tr>"
            for status, said in errors.items()
        )
        parts.append(f"<h3>Errors</h3><table>{rows}</table>")
    return "<section>" + "\n".join(parts) + "</section>"


def _keys(schema: dict[str, Any]) -> str:
    needed = schema.get("required", [])
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code>{' (needed)' if name in needed else ''}</td>"
        f"<td>{escape(_type(value))}</td><td>{escape(value.get('description', ''))}</td></tr>"
        for name, value in schema.get("properties", {}).items()
    )
    return f"<table><tr><th>key</th><th>type</th><th>meaning</th></tr>{rows}</table>"


def _type(value: dict[str, Any]) -> str:
    if "anyOf" in value:
        return " or ".join(_type(each) for each in value["anyOf"])
    if "enum" in value:
        return " or ".join(json.dumps(each) for each in value["enum"])
    if "const" in value:
        return json.dumps(value["const"])
    if value.get("type") == "array":
        return f"list of {_type(value.get('items', {}))}"
    limits = [
        f"{sign} {value[name]:,}"
        for name, sign in (("minimum", "≥"), ("maximum", "≤"))
        if name in value
    ]
    return " ".join([str(value.get("type", "any")), *limits])
