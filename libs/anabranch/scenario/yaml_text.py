"""YAML as scenario files use it: the core schema of YAML 1.2 (no yes and no, no dates, no octal by a leading zero), no
key twice, keys always text, and the tags ``!bytes !decimal !ts !json !text-repeat``."""

from __future__ import annotations

import base64
import binascii
import re
from decimal import Decimal, InvalidOperation
from typing import Any

import yaml

from anabranch.scenario.values import FormatError, Json, Timestamp

_MOST_CHARACTERS = 64 * 1024 * 1024
_CORE = (
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", "~nN"),
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
    ("tag:yaml.org,2002:merge", r"<<", "<"),
)


class _Loader(yaml.SafeLoader):
    """``yaml.SafeLoader`` with the core schema's rules for plain scalars."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own attribute


def _fault(node: yaml.Node, text: str) -> FormatError:
    return FormatError(f"line {node.start_mark.line + 1}: {text}")


def _mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[str, Any]:
    loader.flatten_mapping(node)
    out: dict[str, Any] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise _fault(key, "a key is text")
        if key.value in out:
            raise _fault(key, f"the key {key.value!r} stands there twice")
        out[key.value] = loader.construct_object(value, deep=True)
    return out


def _integer(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = node.value
    return int(text, 0) if text.startswith(("0o", "0x")) else int(text)


def _float(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    return float(node.value.lower().replace(".inf", "inf").replace(".nan", "nan"))


def _scalar(node: yaml.Node, tag: str) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise _fault(node, f"{tag} takes a text")
    return str(node.value)


def _bytes(loader: yaml.SafeLoader, node: yaml.Node) -> bytes:
    try:
        return base64.b64decode(_scalar(node, "!bytes"), validate=True)
    except binascii.Error as error:
        raise _fault(node, f"!bytes takes base64: {error}") from None


def _decimal(loader: yaml.SafeLoader, node: yaml.Node) -> Decimal:
    try:
        return Decimal(_scalar(node, "!decimal"))
    except InvalidOperation:
        raise _fault(node, "!decimal takes a number") from None


def _timestamp(loader: yaml.SafeLoader, node: yaml.Node) -> Timestamp:
    return Timestamp(_scalar(node, "!ts"))


def _json(loader: yaml.SafeLoader, node: yaml.Node) -> Json:
    if isinstance(node, yaml.MappingNode):
        return Json(_mapping(loader, node))
    if isinstance(node, yaml.SequenceNode):
        return Json(loader.construct_sequence(node, deep=True))
    if not isinstance(node, yaml.ScalarNode):
        raise _fault(node, "!json takes a value")
    # The explicit tag replaced the one that the scalar would have by itself.
    plain = node.style is None
    tag = loader.resolve(yaml.ScalarNode, node.value, (plain, not plain))  # type: ignore[no-untyped-call]
    inner = yaml.ScalarNode(tag, node.value, node.start_mark, node.end_mark, node.style)
    return Json(loader.construct_object(inner, deep=True))


def _repeat(loader: yaml.SafeLoader, node: yaml.Node) -> str:
    given = loader.construct_sequence(node, deep=True) if isinstance(node, yaml.SequenceNode) else []
    if len(given) != 2 or not isinstance(given[0], str) or type(given[1]) is not int or given[1] < 0:
        raise _fault(node, "!text-repeat takes [text, how often]")
    if len(given[0]) * given[1] > _MOST_CHARACTERS:
        raise _fault(node, f"!text-repeat makes no more than {_MOST_CHARACTERS} characters")
    return str(given[0] * given[1])


for _tag, _pattern, _first in _CORE:
    _Loader.add_implicit_resolver(
        _tag, re.compile(rf"(?:{_pattern})\Z"), [*_first, ""] if _tag.endswith("null") else list(_first)
    )
_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
_Loader.add_constructor("tag:yaml.org,2002:int", _integer)
_Loader.add_constructor("tag:yaml.org,2002:float", _float)
_Loader.add_constructor("!bytes", _bytes)
_Loader.add_constructor("!decimal", _decimal)
_Loader.add_constructor("!ts", _timestamp)
_Loader.add_constructor("!json", _json)
_Loader.add_constructor("!text-repeat", _repeat)


def load(text: str) -> Any:
    """The value of a YAML text. Raises FormatError."""
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise FormatError(f"no YAML: {error}") from None
    except RecursionError:
        raise FormatError("no YAML that can be read: it is nested too deeply") from None
