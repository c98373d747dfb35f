"""The contents of the three wheels, and their requirements of each other."""

from __future__ import annotations

import tomllib

from .environments import ROOT, TOOL, Wheel, metadata, requirements

MOST_LINES = 18_900
MOST_KB = 360
"""The most that a device's wheel has: lines of Python, and kilobytes as it travels."""
WORKSPACE = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_file_is_in_one_wheel(built: dict[str, Wheel]) -> None:
    assert TOOL.faults({name: wheel.files for name, wheel in built.items()}, TOOL.tree()) == []


def test_a_file_in_two_wheels_or_in_none_is_told() -> None:
    told = TOOL.faults({"device": {"a.py", "b.py", "c.py"}, "server": {"b.py"}}, {"a.py", "b.py", "d.py"})
    assert told == [
        "b.py is in device and server: name it under `but` of one of them",
        "c.py is in a wheel and not in the source tree",
        "d.py is in no wheel: name it in a wheels/*/pyproject.toml",
    ]


def test_wheels_ask_for_each_other_in_the_same_version(built: dict[str, Wheel]) -> None:
    version = WORKSPACE["project"]["version"]
    ours = {
        name: [str(asked) for asked in requirements(wheel) if asked.name.startswith("anabranch")]
        for name, wheel in built.items()
    }
    assert ours == {
        "device": [],
        "server": [f"anabranch=={version}"],
        "testkit": [f"anabranch-server[compactor,embedded]=={version}"],
    }
    assert {metadata(wheel)["Version"] for wheel in built.values()} == {version}


def test_a_devices_wheel_is_small(built: dict[str, Wheel]) -> None:
    device = built["device"]
    print(f"{device.lines:,} lines, {device.bytes / 1e3:,.0f} kB")
    assert device.lines <= MOST_LINES
    assert device.bytes <= MOST_KB * 1e3
    assert device.path.name.endswith("-py3-none-any.whl")


def test_import_rules_name_what_the_wheels_hold() -> None:
    """So that what the rules hold apart is what the wheels hold apart."""
    rules = {contract["name"]: contract for contract in WORKSPACE["tool"]["importlinter"]["contracts"]}
    held = {}
    for name in TOOL.WHEELS:
        settings = tomllib.loads((ROOT / "wheels" / name / "pyproject.toml").read_text())
        listed = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["files"]
        named = [file.partition("/")[2].removesuffix(".pyi").removesuffix(".py").replace("/", ".") for file in listed]
        held[name] = {module for module in named if not module.endswith(("__init__", "py.typed"))}
    # Of a package that a device has, a server has some modules for itself: a device that is installed alone shows that
    # it needs none of them.
    held["server"] = {module for module in held["server"] if module.rpartition(".")[0] not in held["device"]}
    device, server = rules["A device needs nothing of the server"], rules["A server needs nothing of the testkit"]
    assert set(device["source_modules"]) == held["device"]
    # Of `cli` a device has some modules; the one that leads to all others is named.
    elsewhere = held["server"] - {"anabranch.cli"} | {"anabranch.cli.app"} | held["testkit"]
    assert elsewhere <= set(device["forbidden_modules"])
    assert set(server["source_modules"]) == held["server"]
    assert set(server["forbidden_modules"]) == held["testkit"]
