"""A pytest plugin: every run ends with the list of the tests that it did not run, and why.

Loaded by `-p anabranch.testkit.not_run`. A skip without a reason fails the run: nobody could check later
whether the reason still holds.
"""

from __future__ import annotations

from collections import defaultdict

import pytest

NO_REASON = ("", "unconditional skip")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a skipped or expectedly failing test was not run to its end."""
    wasxfail: str | None = getattr(report, "wasxfail", None)
    if wasxfail is not None:
        return f"expected to fail: {wasxfail.removeprefix('reason: ')}"
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ").removeprefix("Skipped").strip()
    return ""


def not_run(reporter: pytest.TerminalReporter) -> dict[str, list[str]]:
    """Reason to the ids of the tests that did not run because of it, in the order in which they were met."""
    found: dict[str, list[str]] = defaultdict(list)
    for report in (*reporter.stats.get("skipped", []), *reporter.stats.get("xfailed", [])):
        found[_reason(report)].append(report.nodeid)
    for item in reporter.stats.get("deselected", []):
        found["deselected on the command line"].append(item.nodeid)
    return dict(found)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the list."""
    found = not_run(terminalreporter)
    terminalreporter.section("not run")
    if not found:
        terminalreporter.write_line("Nothing: every test that was collected ran.")
    for reason, nodes in found.items():
        terminalreporter.write_line(f"{reason if reason not in NO_REASON else 'NO REASON GIVEN'} ({len(nodes)}):")
        for node in nodes:
            terminalreporter.write_line(f"    {node}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Turn success into failure where a skip has no reason."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or session.exitstatus != pytest.ExitCode.OK:
        return
    if any(reason in NO_REASON for reason in not_run(reporter)):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
