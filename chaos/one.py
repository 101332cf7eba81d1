"""`python -m chaos.one CASE.json DIRECTORY SECONDS GROUPS`: one case, in namespaces that are there."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from chaos.data import GLOBAL_BATCH, RECORDS, STEPS_PER_EPOCH
from chaos.driver import Driver
from chaos.faults import Case, from_data
from chaos.verdict import judge
from edl_allreduce import clock
from edl_allreduce.core.schedule import Order, Span

RESULT = "result.json"


def main(case_file: str, place: str, seconds: str, groups: str) -> int:
    directory = Path(place)
    directory.mkdir(parents=True, exist_ok=True)
    case = from_data(json.loads(Path(case_file).read_text()))
    began = clock.now()

    def say(line: str) -> None:
        print(f"{clock.now() - began:7.1f} s  {line}", flush=True)

    driver = Driver(case, directory, say, float(seconds), groups)
    evidence = driver.run()
    evidence.undisturbed = undisturbed(case)
    verdict = judge(case, evidence)
    result = {
        **asdict(verdict),
        "faults": [[str(done.fault), done.what] for done in driver.done],
        "seconds": round(clock.now() - began, 1),
        "events": len(driver.watch.kinds),
    }
    (directory / RESULT).write_text(json.dumps(result, indent=1))
    for problem in verdict.problems:
        say(f"PROBLEM: {problem}")
    return 1 if verdict.problems else 0


def undisturbed(case: Case) -> list[list[int]]:
    """The order of the data is a function of the seed alone, so the product's own says what it should be."""
    order = Order(RECORDS, case.seed)
    places = [divmod(step, STEPS_PER_EPOCH) for step in range(case.shape.steps)]
    return [order.indices(Span(e, s * GLOBAL_BATCH, (s + 1) * GLOBAL_BATCH)) for e, s in places]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
