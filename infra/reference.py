"""Generates the references of the documentation as Markdown: REST API, command line and metrics.

Each is generated from the program, so it cannot be out of date. Comments in the pages of `docs/reference` mark where
the site inserts them.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric

from khala import cli
from khala.api.application import create_routes
from khala.api.openapi import constraints
from khala.api.responses.document import document as openai_document
from khala.signals import metrics

Json = Mapping[str, Any]

METHODS = ("get", "head", "put", "post", "patch", "delete")
METRICS_HEAD = "| name | type | labels | meaning |\n|---|---|---|---|\n"


def rest_api() -> str:
    """All operations of `/api` and `/v1`, with their parameters, bodies and answers, and all schemas."""
    api = create_routes(web=Path(), version="").openapi_schema.to_schema()
    documents = (("API of threads", constraints.complete(api)), ("OpenAI-compatible API", openai_document()))
    return "\n".join(line for title, one in documents for line in _document(title, one))


def command_line() -> str:
    """The help of all commands that are not hidden."""
    return "\n".join(_command(cli.main, "khala", None))


def metrics_table() -> str:
    """Name, type, labels and meaning of each metric."""
    named = [one for one in vars(metrics).values() if isinstance(one, MetricWrapperBase)]
    rows = [(_name(one), _type(one), _labels(one), _meaning(one)) for one in named]
    computed = [
        *metrics.database_metrics(0, 0, 0, 0, 0),
        *metrics.plan_metrics(0, 0),
        *metrics.webhook_metrics(0, 0, 0),
        *metrics.activity_metrics(0, 0, 0),
        *metrics.storage_metrics(0, 0, 0),
        *metrics.table_metrics([("any", 0, 0, 0, 0)]),
        *metrics.freeze_metric([("any", 0)]),
        *metrics.database_up_metric(ok=True),
        *metrics.pool_metrics([("any", 0, 0)]),
    ]
    rows += [(one.name, one.type, _sample_labels(one), one.documentation) for one in computed]
    return METRICS_HEAD + "\n".join(f"| `{name}` | {kind} | {labels} | {says} |" for name, kind, labels, says in rows)


def _name(metric: MetricWrapperBase) -> str:
    name: str = metric._name  # noqa: SLF001
    return f"{name}_total" if metric._type == "counter" else name  # noqa: SLF001


def _type(metric: MetricWrapperBase) -> str:
    return str(metric._type)  # noqa: SLF001


def _labels(metric: MetricWrapperBase) -> str:
    return ", ".join(f"`{name}`" for name in metric._labelnames)  # noqa: SLF001


def _meaning(metric: MetricWrapperBase) -> str:
    return str(metric._documentation)  # noqa: SLF001


def _sample_labels(metric: Metric) -> str:
    return ", ".join(f"`{name}`" for name in (metric.samples[0].labels if metric.samples else {}))


def _command(command: click.Command, name: str, parent: click.Context | None) -> Iterator[str]:
    context = click.Context(command, info_name=name, parent=parent, max_content_width=100, terminal_width=100)
    yield from (f"\n## {context.command_path}\n", "```text", command.get_help(context).strip(), "```")
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            if found is not None and not found.hidden:
                yield from _command(found, child, context)


def _document(title: str, document: Json) -> Iterator[str]:
    groups: dict[str, list[tuple[str, str, Json]]] = {one["name"]: [] for one in document.get("tags", ())}
    for path, item in document["paths"].items():
        for method in (one for one in METHODS if one in item):
            group = (item[method].get("tags") or [title])[0]
            groups.setdefault(group, []).append((method, path, item[method]))
    for group, operations in groups.items():
        yield f"\n## {group}"
        for method, path, operation in operations:
            yield from _operation(method, path, operation)
    yield f"\n## Schemas of the {title}\n"
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield from _schema(name, schema)


def _operation(method: str, path: str, operation: Json) -> Iterator[str]:
    yield f"\n### `{method.upper()} {path}`\n"
    description = operation.get("description") or ""
    summary = operation["summary"]
    details = f" {description}" if description and description != summary else ""
    yield f"**{summary}{'' if summary.endswith('?') else '.'}**{details}"
    if parameters := operation.get("parameters"):
        yield from ("\n| parameter | in | type | meaning |", "|---|---|---|---|")
        yield from (_parameter(one) for one in parameters)
    if body := operation.get("requestBody"):
        need = "" if body.get("required", False) else " (optional)"
        yield f"\nBody{need}: " + "; ".join(_contents(body["content"]))
    yield from ("\n| status | answer |", "|---|---|")
    for status, answer in sorted(operation["responses"].items()):
        types = "; ".join(_contents(answer.get("content") or {}, skip="application/problem+json"))
        yield f"| {status} | {_cell(answer['description'])}{f'<br>{types}' if types else ''} |"


def _parameter(parameter: Json) -> str:
    name = f"`{parameter['name']}`" + ("" if not parameter.get("required") else " (required)")
    meaning = parameter.get("description") or parameter["schema"].get("description", "")
    return f"| {name} | {parameter['in']} | {_type_of(parameter['schema'])} | {_cell(meaning)} |"


def _contents(content: Json, *, skip: str = "") -> Iterator[str]:
    for media, body in content.items():
        if media != skip:
            yield f"`{media}` {_type_of(body.get('schema') or {})}".rstrip()


def _schema(name: str, schema: Json) -> Iterator[str]:
    yield f"\n### {_short(name)}\n"
    if says := schema.get("description"):
        yield f"{says}\n"
    if not (properties := schema.get("properties")):
        yield _type_of(schema)
        return
    required = schema.get("required", ())
    yield from ("| field | type | meaning |", "|---|---|---|")
    for field, kind in properties.items():
        need = " (required)" if field in required else ""
        yield f"| `{field}`{need} | {_type_of(kind)} | {_cell(kind.get('description', ''))} |"


def _type_of(schema: Any) -> str:
    """A short description of a type, with a link if the type is a named schema."""
    if not isinstance(schema, Mapping):
        return "any"
    if "$ref" in schema:
        name = _short(schema["$ref"].rpartition("/")[2])
        return f"[{name}](#{name.lower()})"
    for word in ("oneOf", "anyOf", "allOf"):
        if word in schema and "type" not in schema:
            return " or ".join(dict.fromkeys(_type_of(one) for one in schema[word]))
    if "const" in schema or "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"array of {_type_of(schema.get('items', {}))}"
    return " ".join([str(schema.get("type", "any")), *_bounds(schema)])


def _bounds(schema: Json) -> Iterable[str]:
    if kind := schema.get("format"):
        yield f"({kind})"
    for word, least, most in (("", "minimum", "maximum"), (" characters", "minLength", "maxLength")):
        if least in schema or most in schema:
            yield f"{_number(schema.get(least))}…{_number(schema.get(most))}{word}"


def _number(bound: float | None) -> str:
    return "" if bound is None else f"{bound:,g}" if bound < 1 else f"{bound:,.0f}"


def _short(name: str) -> str:
    """The name of a schema without the modules of its parameters: `Items_khala.store.audit.Trace_` is `Items_Trace`."""
    head, _, rest = name.partition("_khala.")
    return f"{head}_{rest.rstrip('_').rpartition('.')[2]}" if rest else name


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
