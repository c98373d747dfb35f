"""A wait of a test ends with what runs beside it, and says how that ended."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

import pytest

from anabranch.testkit.waiting import until

WHY = "the pull does not wait"


def ended(act: Callable[[Future[str]], None]) -> Future[str]:
    future: Future[str] = Future()
    act(future)
    return future


def test_the_failure_of_what_runs_beside_is_the_cause() -> None:
    failure = OSError("refused")
    with pytest.raises(AssertionError, match=rf"{WHY}; .* failed: OSError\('refused'\)") as caught:
        until(lambda: False, why=WHY, beside=ended(lambda future: future.set_exception(failure)))
    assert caught.value.__cause__ is failure


def test_what_ended_well_but_too_early_is_told_with_what_it_gave() -> None:
    with pytest.raises(AssertionError, match=f"{WHY}; .* given 'rows'"):
        until(lambda: False, why=WHY, beside=ended(lambda future: future.set_result("rows")))


def test_what_it_brings_about_as_its_last_act_counts() -> None:
    beside: Future[str] = Future()
    looks = iter([False, True])

    def look() -> bool:
        # It ends between the question whether it has and the look.
        if not beside.done():
            beside.set_result("rows")
        return next(looks)

    until(look, why=WHY, beside=beside)


def test_without_anything_beside_the_time_runs_out() -> None:
    with pytest.raises(AssertionError, match=f"^{WHY}$"):
        until(lambda: False, 0.0, WHY)
