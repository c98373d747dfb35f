"""Running scenarios: files in, one result each out."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from anabranch.scenario import expectations, steps, syncing
from anabranch.scenario.ground import Ground
from anabranch.scenario.model import SERVER, Expectations, Scenario
from anabranch.scenario.node import Nursery, RaisedError
from anabranch.scenario.parse import read_scenario
from anabranch.scenario.values import FormatError
from anabranch.scenario.world import FellShortError, NotYetError, World
from anabranch.testkit.warm_compactor import WarmCompactor

_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one file. ``detail``: the differences from the file, "" where there are none."""

    file: str
    name: str
    ok: bool
    detail: str


def files_of(paths: Sequence[Path]) -> list[Path]:
    """The scenario files that ``paths`` name: files, and those in folders, in order. Raises FileNotFoundError for a
    path that is not there and for a folder without any."""
    out: list[Path] = []
    for path in paths:
        if path.is_file():
            out.append(path)
            continue
        found = sorted(p for p in path.rglob("*") if p.suffix in _SUFFIXES and p.is_file())
        if not found:
            raise FileNotFoundError(f"{path} is no file and no folder with scenarios in it")
        out += found
    return out


class Runner:
    """Runs scenarios in ``folder``, one after the other, on a ground that they share and that is made when it is first
    needed. ``close`` ends every process. ``program``: a client to be a node in place of ours."""

    def __init__(self, folder: Path, program: Path | None = None) -> None:
        self._folder = folder
        self._program = program
        self._count = 0
        self._ends = ExitStack()
        self._nursery: Nursery | None = None
        self._compactor = WarmCompactor(folder / "compactor.log")
        self._shared: Ground | None = None

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End everything that was started."""
        self._shared = self._nursery = None
        self._ends.callback(self._compactor.close)
        self._ends.close()

    def run(self, file: Path) -> Result:
        """Run one file; the result holds every fault."""
        try:
            scenario = read_scenario(file)
        except (FormatError, OSError) as error:
            return Result(str(file), "", False, str(error))
        self._count += 1
        try:
            detail = self._tell(scenario, self._folder / f"scenario{self._count}")
        except Exception as error:
            # A fault of the runner itself, or of its ground: the next scenario begins on new ground.
            self._shared = None
            detail = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
        return Result(str(file), scenario.name, not detail, detail)

    def _tell(self, scenario: Scenario, folder: Path) -> str:
        if _takes_the_server_back(scenario):
            with Ground(folder / "ground", self._nodes_from(), self._compactor) as own:
                return tell(World(own, scenario, folder / "nodes"))
        return tell(World(self.ground(), scenario, folder / "nodes"))

    def ground(self) -> Ground:
        """The services and the Postgres that stories share, started where they are not there yet."""
        if self._shared is None:
            own = Ground(self._folder / f"ground{self._count}", self._nodes_from(), self._compactor)
            self._shared = self._ends.enter_context(own)
        return self._shared

    def _nodes_from(self) -> Nursery:
        if self._nursery is None:
            self._nursery = Nursery(self._folder / "nursery.log", self._program)
            self._ends.callback(self._nursery.close)
        return self._nursery


def _takes_the_server_back(scenario: Scenario) -> bool:
    given = [step.given for step in scenario.steps if step.name in ("save", "rewind")]
    return any(one.what == SERVER for one in given)


def tell(world: World) -> str:
    """Run a scenario to its end; return the differences from the file, "" where there are none."""
    place = "the tables"
    scenario = world.scenario
    try:
        world.make_database()
        place = "the nodes"
        steps.start_nodes(world, scenario.nodes)
        for number, step in enumerate(scenario.steps, 1):
            place = f"step {number} ({step.name})"
            world.left_s()
            steps.take(world, step)
        place = "expect"
        _expect(world, scenario.expect)
        place = "the end"
        unreached = world.never_reached()
        if unreached:
            raise FellShortError(f"armed, and never reached: {', '.join(unreached)}")
    except (FellShortError, RaisedError, NotYetError, ValueError, world.conn.Error) as error:
        return world.ids.told(f"{place}: {error}")
    finally:
        world.close()
    return ""


def _expect(world: World, expect: Expectations) -> None:
    if not expect.as_is:
        try:
            syncing.sync_all(world)
        except RaisedError as error:
            if not error.is_of_one_node:
                raise
    expectations.check(world, expect)


def run_all(
    paths: Sequence[Path], folder: Path, say: Callable[[Result, float], None], program: Path | None = None
) -> list[Result]:
    """Run every file of ``paths``; ``say`` gets each result as the file ends, and the seconds that it took. Nodes run
    ``program``, or our own client. Raises FileNotFoundError."""

    def results() -> Iterator[Result]:
        files = files_of(paths)
        with Runner(folder, program) as runner:
            for file in files:
                began = time.monotonic()
                result = runner.run(file)
                say(result, time.monotonic() - began)
                yield result

    return list(results())


def as_report(results: Sequence[Result]) -> list[dict[str, object]]:
    """The report: a list of file, name, ok and detail."""
    return [asdict(result) for result in results]
