"""Which tests run: by their pace, and until a moment."""

from __future__ import annotations

import time

import pytest

PLUGIN = ("-p", "anabranch.testkit.paces", "-rs")


@pytest.fixture
def tests(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeini("[pytest]\nmarkers =\n    slow\n    long\n")
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture
        def costly():
            print("costly was made")

        def test_quick(costly): ...

        @pytest.mark.slow
        def test_slow(costly): ...

        @pytest.mark.long
        @pytest.mark.slow
        def test_long(costly): ...
        """
    )
    return pytester


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ((), {"passed": 1, "skipped": 2}),
        (("--only-slow",), {"passed": 1}),
        (("--only-long",), {"passed": 1}),
        (("--long",), {"passed": 3}),
    ],
)
def test_slow_and_long_tests_run_when_they_are_asked_for(
    tests: pytest.Pytester, options: tuple[str, ...], wanted: dict[str, int]
) -> None:
    result = tests.runpytest_subprocess(*PLUGIN, *options)
    result.assert_outcomes(**wanted)
    if not options:
        result.stdout.fnmatch_lines(["*it is slow: make test-slow runs it", "*it is long: make test-long runs it"])


@pytest.mark.slow
def test_none_begins_after_the_moment_that_is_given(tests: pytest.Pytester) -> None:
    late = tests.runpytest_subprocess(*PLUGIN, "--long", "-s", "--until", str(int(time.time()) - 1))
    late.assert_outcomes(skipped=3)
    late.stdout.fnmatch_lines_random(
        [f"*used up by others: make {by} runs it" for by in ("test", "test-slow", "test-long")]
    )
    late.stdout.no_fnmatch_line("*costly was made*")
    tests.runpytest_subprocess(*PLUGIN, "--long", "--until", str(int(time.time()) + 600)).assert_outcomes(passed=3)
