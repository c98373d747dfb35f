"""The chart's chores: the parts of it that are made from something else, and the check that they are current.

Two things are made: the table of values in ``README.md``, from the comments in ``values.yaml``, and the
definitions ``…Settings`` in ``values.schema.json``, from the services' settings classes.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import yaml

from anabranch.runtime.config import ServiceSettings

CHART = Path(__file__).resolve().parent.parent / "helm" / "anabranch"
VALUES, SCHEMA, README = CHART / "values.yaml", CHART / "values.schema.json", CHART / "README.md"
BEGIN, END = "<!-- values: made by `make chart` from the comments in values.yaml -->\n", "<!-- end of values -->"
KEY = re.compile(r"^( *)([A-Za-z][A-Za-z0-9]*):(?: (.*))?$")

SETTINGS = {
    "ingestSettings": "anabranch_ingest",
    "conflictResolverSettings": "anabranch_conflict_resolver",
    "snapshotSettings": "anabranch_snapshot",
    "retentionJanitorSettings": "anabranch_retention_janitor",
}
"""Definition in the schema to the package whose settings it gives."""

OF_THE_CHART = frozenset(
    {
        "listen_address", "allow_plaintext_beyond_loopback", "tls_cert_file", "tls_key_file", "tls_client_ca_file",
        "postgres_url", "writer_postgres_url", "metrics_address", "otlp_endpoint", "jwt_hs256_secret", "jwt_jwks_file",
    }
)  # fmt: skip
"""Settings that the chart makes from other values, or that need a file that it does not mount."""

NOT_FOR_A_CLUSTER = frozenset({"end_with_stdin", "clock_offset_ms", "clock_file"})
"""Settings for `anabranch up` and for tests."""


class ChartError(Exception):
    """The chart's files have a fault, which the message names."""


def settings_class(package: str) -> type[ServiceSettings]:
    """The settings class of a service; the class that all share, where the service has none of its own yet."""
    if importlib.util.find_spec(f"{package}.config") is None:
        return ServiceSettings
    module = importlib.import_module(f"{package}.config")
    own = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, ServiceSettings) and value.__module__ == module.__name__
    ]
    if len(own) != 1:
        raise ChartError(f"{package}.config has {len(own)} settings classes, not one")
    return own[0]


def settings_definition(settings: type[ServiceSettings]) -> dict[str, Any]:
    """The JSON schema of a service's settings, as the chart takes them."""
    properties: dict[str, Any] = {}
    for name, found in settings.model_json_schema()["properties"].items():
        if name in OF_THE_CHART | NOT_FOR_A_CLUSTER:
            continue
        parts = found.pop("anyOf", [found])
        wanted = [part for part in parts if part.get("type") != "null"]
        if len(wanted) != 1:
            raise ChartError(f"the setting {name} has more than one type")
        properties[name] = {
            key: value for key, value in wanted[0].items() if key not in ("title", "default", "description", "format")
        }
    return {"type": "object", "additionalProperties": False, "properties": properties}


def schema_text() -> str:
    """``values.schema.json`` with current definitions."""
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    definitions = schema["definitions"]
    definitions["commonSettings"] = settings_definition(ServiceSettings)
    for name, package in SETTINGS.items():
        definitions[name] = settings_definition(settings_class(package))
    return json.dumps(schema, indent=2) + "\n"


def documented(text: str) -> dict[str, str]:
    """Path of every value that has a comment to that comment. Raises ChartError for two comments on one."""
    found: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            comment.append(line.strip().lstrip("#").strip())
            continue
        match = KEY.match(line)
        if match is None:
            comment = []
            continue
        depth = len(match[1])
        path = [entry for entry in path if entry[0] < depth] + [(depth, match[2])]
        if comment:
            found[".".join(name for _, name in path)] = " ".join(comment)
        comment = []
    return found


def leaves(values: dict[str, Any], comments: dict[str, str], prefix: str = "") -> dict[str, Any]:
    """Path of every value to its default. A mapping with a comment, and an empty one, is one value, as long as
    nothing in it has a comment."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        path = f"{prefix}{key}"
        inner = any(other.startswith(f"{path}.") for other in comments)
        if isinstance(value, dict) and value and (inner or path not in comments):
            found |= leaves(value, comments, f"{path}.")
        else:
            found[path] = value
    return found


def readme_text() -> str:
    """``README.md`` with the current table. Raises ChartError for a value without a comment."""
    text = VALUES.read_text(encoding="utf-8")
    comments = documented(text)
    rows = ["| value | default | what it is |", "|---|---|---|"]
    for path, default in leaves(yaml.safe_load(text), comments).items():
        if path not in comments:
            raise ChartError(f"values.yaml: {path} has no comment")
        shown = json.dumps(default, ensure_ascii=False).replace("|", "\\|")
        rows.append(f"| `{path}` | `{shown}` | {comments[path].replace('|', chr(92) + '|')} |")
    readme = README.read_text(encoding="utf-8")
    before, _, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ChartError(f"README.md lacks the lines {BEGIN.strip()} and {END}")
    return f"{before}{BEGIN}\n" + "\n".join(rows) + f"\n\n{END}{after}"


def main(arguments: list[str]) -> int:
    """``generate`` writes, ``check`` compares; 1 when something is stale or wrong."""
    if arguments not in (["generate"], ["check"]):
        print("usage: chart.py generate | check", file=sys.stderr)
        return 2
    try:
        wanted = {SCHEMA: schema_text(), README: readme_text()}
    except ChartError as error:
        print(f"chart: {error}", file=sys.stderr)
        return 1
    stale = [file for file, text in wanted.items() if file.read_text(encoding="utf-8") != text]
    if arguments == ["generate"]:
        for file in stale:
            file.write_text(wanted[file], encoding="utf-8")
        return 0
    for file in stale:
        print(f"chart: helm/anabranch/{file.name} is not current; `make chart` makes it", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
