"""The closing list of what was not run."""

from __future__ import annotations

import pytest

PLUGIN = ("-p", "anabranch.testkit.not_run")


def test_skips_are_listed_with_their_reasons_and_nodes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.skip(reason="needs a moon")
        def test_tide(): ...

        def test_found_out_late():
            pytest.skip("no tide today")

        @pytest.mark.xfail(reason="the moon is late")
        def test_moon():
            assert False

        def test_that_runs(): ...
        """
    )
    result = pytester.runpytest_subprocess(*PLUGIN)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        [
            "*= not run =*",
            "needs a moon (1):",
            "    *::test_tide",
            "no tide today (1):",
            "    *::test_found_out_late",
            "expected to fail: the moon is late (1):",
            "    *::test_moon",
        ]
    )


@pytest.mark.slow
def test_whole_modules_are_listed_also_from_parallel_workers(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\npytest.skip('needs a sea', allow_module_level=True)")
    pytester.makepyfile(test_b="def test_that_runs(): ...")
    result = pytester.runpytest_subprocess(*PLUGIN, "-n", "2")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*= not run =*", "needs a sea (*):"])


def test_a_complete_run_says_so(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_that_runs(): ...")
    result = pytester.runpytest_subprocess(*PLUGIN)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*= not run =*", "Nothing: every test that was collected ran."])


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("-n", "2")], ids=["alone", "parallel"])
def test_a_skip_without_a_reason_fails_the_run(pytester: pytest.Pytester, flags: tuple[str, ...]) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.skip
        def test_tide(): ...

        def test_that_runs(): ...
        """
    )
    result = pytester.runpytest_subprocess(*PLUGIN, *flags)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["NO REASON GIVEN (1):", "    *::test_tide"])
