"""`make images` gives a build the settings of this machine's pip, and Docker itself takes compose.yaml."""

from __future__ import annotations

import io
import shutil
import subprocess
from types import ModuleType

import pytest
from tests.tools import load_tool

from .containers import COMMAND_S, DOCKER, ROOT, docker


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_tool("images")


def test_settings_that_mean_the_same_inside_are_given(tool: ModuleType) -> None:
    listed = "\n".join((
        ":env:.cert='/etc/own/authority.pem'",
        ":env:.find-links='/opt/wheels'",
        "download.timeout='1'",
        "global.extra-index-url='\\nhttps://one.test/%40\\nhttps://two.test/'",
        "global.index-url='https://u:p%23@index.test/simple'",
        "global.timeout='10'",
        "install.timeout='20'",
    ))  # fmt: skip
    written = io.StringIO()
    tool.pip_config(tool.pip_settings(listed)).write(written)
    found = tool.configparser.RawConfigParser()
    found.read_string(written.getvalue())
    assert dict(found["global"]) == {
        "cert": "/run/secrets/ca.pem",
        "extra-index-url": "\nhttps://one.test/%40\nhttps://two.test/",
        "index-url": "https://u:p%23@index.test/simple",
        "timeout": "20",
    }


def test_nothing_is_given_where_pip_is_told_nothing(tool: ModuleType) -> None:
    assert not dict(tool.pip_config(tool.pip_settings(""))["global"])


def test_an_answer_that_is_not_understood_is_not_passed_over(tool: ModuleType) -> None:
    with pytest.raises(ValueError, match="WARNING"):
        tool.pip_settings("WARNING: something else")


def test_compose_takes_its_file_with_any_password() -> None:
    """By Docker's own plugin, which needs no engine."""
    if shutil.which(DOCKER) is None:
        pytest.skip(f"{DOCKER} not found: compose.yaml is only looked at by tests/chart")
    if subprocess.run([DOCKER, "compose", "version"], capture_output=True, check=False, timeout=COMMAND_S).returncode:
        pytest.skip(f"{DOCKER} has no plugin compose: compose.yaml is only looked at by tests/chart")
    file = str(ROOT / "deploy" / "compose.yaml")
    docker("compose", "--file", file, "config", "--quiet", more={"POSTGRES_PASSWORD": "a b:@/#?%[]&$()'"})
