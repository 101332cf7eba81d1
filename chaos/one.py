"""`python -m chaos.one CASE.json DIRECTORY SECONDS`: one case, in namespaces that are there already."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from chaos.driver import Driver
from chaos.faults import from_data
from chaos.verdict import judge
from edl_allreduce import clock

RESULT = "result.json"


def main(case_file: str, place: str, seconds: str) -> int:
    directory = Path(place)
    directory.mkdir(parents=True, exist_ok=True)
    case = from_data(json.loads(Path(case_file).read_text()))
    began = clock.now()

    def say(line: str) -> None:
        print(f"{clock.now() - began:7.1f} s  {line}", flush=True)

    driver = Driver(case, directory, say, float(seconds))
    evidence = driver.run()
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


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
