"""docs/api-http.md from the OpenAPI schema: `python -m tests.server.api_page` writes it, a test compares it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from silo.server.app import make_app

PAGE = Path(__file__).parent.parent.parent / "docs" / "api-http.md"
HEAD = """# HTTP API

Made from the OpenAPI schema, which a server gives at `/openapi.json`; [serve.md](serve.md) is the page to begin with.
Bodies are JSON objects, errors are `{"error": {"message", "type", "param", "code", "hint"}}`.
"""


def render(schema: dict[str, Any]) -> str:
    """The whole page."""
    models = schema["components"]["schemas"]
    return "\n".join([HEAD, *_routes(schema["paths"], models), *_bodies(models)]).rstrip() + "\n"


def _routes(paths: dict[str, Any], models: dict[str, Any]) -> Iterator[str]:
    yield "## Routes\n\n| route | for | does | takes |\n|---|---|---|---|"
    for path, methods in paths.items():
        for method, operation in methods.items():
            roles = ", ".join(operation["x-silo-roles"]) or "everybody"
            summary = " ".join(operation.get("description", "").split())
            taken = [f"`{item['name']}`" for item in operation.get("parameters", []) if item["in"] == "query"]
            taken += [f"[{_body(operation)}](#{_body(operation).lower()})"] if "requestBody" in operation else []
            yield f"| `{method.upper()} {path}` | {roles} | {summary} | {', '.join(taken)} |"
    yield ""


def _body(operation: dict[str, Any]) -> str:
    content = operation["requestBody"]["content"]["application/json"]["schema"]
    return str(content["$ref"].rpartition("/")[2])


def _bodies(models: dict[str, Any]) -> Iterator[str]:
    for name, model in sorted(models.items()):
        if "properties" not in model or name in ("HTTPValidationError", "ValidationError"):
            continue
        yield f"## {name}\n\n{' '.join(model.get('description', '').split())}\n"
        yield "| field | type | default | |\n|---|---|---|---|"
        needed = model.get("required", [])
        for field, facts in model["properties"].items():
            default = "needed" if field in needed else _value(facts.get("default"))
            yield f"| `{field}` | {_type(facts)} | {default} | {facts.get('description', '')} |"
        yield ""


def _value(default: Any) -> str:
    return "" if default in (None, "") else f"`{str(default).lower() if isinstance(default, bool) else default}`"


def _type(facts: dict[str, Any]) -> str:
    if "$ref" in facts:
        name = facts["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in facts:
        return " or ".join(dict.fromkeys(_type(item) for item in facts["anyOf"] if item.get("type") != "null"))
    if facts.get("type") == "array":
        return f"list of {_type(facts['items'])}"
    if "enum" in facts:
        return ", ".join(facts["enum"])
    if "const" in facts:
        return str(facts["const"])
    return " ".join([facts.get("type", "any"), *_bounds(facts)])


def _bounds(facts: dict[str, Any]) -> Iterator[str]:
    words = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
    yield from (f"{word} {facts[name]}" for name, word in words.items() if name in facts and abs(facts[name]) < 2**31)


if __name__ == "__main__":
    PAGE.write_text(render(make_app().openapi()), encoding="utf-8")
