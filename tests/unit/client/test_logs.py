"""The client's log goes the app's way."""

from __future__ import annotations

import subprocess
import sys

import pytest

from anabranch.client.logs import get_logger


def test_a_line_goes_through_the_standard_logging(caplog: pytest.LogCaptureFixture) -> None:
    get_logger("anabranch.client.some").warning("set_aside", table="todo")
    [record] = caplog.records
    assert (record.name, record.levelname) == ("anabranch.client.some", "WARNING")
    assert record.getMessage() == "event='set_aside' table='todo'"


def test_an_app_that_configures_nothing_keeps_its_standard_output() -> None:
    program = "from anabranch.client.logs import get_logger as g; g('anabranch.client').warning('w'); g('x').info('i')"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout == ""
    assert ran.stderr == "event='w'\n"
