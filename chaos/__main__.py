"""`python -m chaos`: try to break the promises of real jobs.

    python -m chaos --minutes 60 --seed 1          many jobs, one after the other, seeds 1, 2, 3, …
    python -m chaos --faults 2000 --minutes 120    one job, so many faults
    python -m chaos --case chaos-results/seed-7-shrunk.json      one case again

What was run is in --directory, and is not run again there; what failed there makes every later command fail.
While there is a file `pause` in it, everything stands still.
Needs root (or user namespaces), nft, ss and tc.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import signal
import sys
from pathlib import Path

from chaos.campaign import Campaign, Outcome, table
from chaos.driver import PAUSE
from chaos.faults import Case, Style, from_data
from chaos.schedule import case_of
from edl_allreduce import clock
from edl_allreduce.contract import EXIT_INTERRUPTED

TOOLS = ("unshare", "nft", "ss", "tc", "ip", "mount")


def main(argv: list[str] | None = None) -> int:
    settings = _flags().parse_args(argv)
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        print(f"these programs are missing: {', '.join(missing)} (packages util-linux, iproute2, nftables)")
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_INTERRUPTED))  # so that the job ends with us
    campaign = Campaign(settings.directory.resolve())
    outcomes = _all(campaign, settings)
    results = list(campaign.known().values())
    print("\n".join(table(results)))
    now = [outcome.case.seed for outcome in outcomes if outcome.problems]
    failed = now if settings.case else campaign.failed()
    faults = sum(bool(what) for result in results for _, what in result["faults"])
    print(f"{len(results)} jobs, {faults} faults; failed now: {now or 'none'}, at all: {failed or 'none'}")
    return 1 if failed else 0


def _all(campaign: Campaign, settings: argparse.Namespace) -> list[Outcome]:
    if settings.case:
        case = from_data(json.loads(settings.case.read_text()))
        return [_told(campaign, campaign.attempt(case, f"again-{case.seed}"), 0)]
    style = Style(settings.style) if settings.style else None
    if settings.faults:
        case = case_of(settings.seed, settings.faults, style)
        return [_told(campaign, campaign.run(case, 60 * settings.minutes), 0)]
    until = clock.now() + 60 * settings.minutes
    seed = settings.seed
    outcomes: list[Outcome] = []
    while clock.now() < until and len(outcomes) < settings.jobs:
        if (campaign.directory / PAUSE).exists():
            clock.sleep(1.0)
            continue
        case = case_of(seed, style=style)
        if not campaign.settled(case):
            outcomes.append(_told(campaign, _run(campaign, case), settings.shrink))
        seed += 1
    return outcomes


def _run(campaign: Campaign, case: Case) -> Outcome:
    print(f"seed {case.seed}: {len(case.faults)} faults, about {case.seconds:.0f} s …", flush=True)
    return campaign.run(case)


def _told(campaign: Campaign, outcome: Outcome, tries: int) -> Outcome:
    print(outcome.line(), flush=True)
    if outcome.problems and tries:
        small = campaign.shrunk(outcome, tries)
        print(
            f"seed {outcome.case.seed} fails with {len(small.faults)} of {len(outcome.case.faults)} faults:"
        )
        for fault in small.faults:
            print(f"  {fault.pause:5.2f} s later: {fault}", flush=True)
    return outcome


def _flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="nothing new after so long (default: 10)")
    parser.add_argument("--seed", type=int, default=1, help="of the first job (default: 1)")
    parser.add_argument("--jobs", type=float, default=math.inf, help="not more jobs than this")
    parser.add_argument("--faults", type=int, default=0, help="one job with so many faults")
    parser.add_argument("--style", choices=[str(style) for style in Style], help="only jobs of this kind")
    parser.add_argument("--shrink", type=int, default=12, help="runs to shrink a failing case (default: 12)")
    parser.add_argument("--case", type=Path, help="one case again, from its file")
    parser.add_argument("--directory", type=Path, default=Path("chaos-results"), help="of what was run")
    return parser


if __name__ == "__main__":
    sys.exit(main())
