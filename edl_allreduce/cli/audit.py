"""`elasticdl audit`: was every record used exactly once per epoch?"""

from __future__ import annotations

import argparse
import dataclasses

import msgspec

from edl_allreduce import outside
from edl_allreduce.cli.asking import job_parser, resolve_job
from edl_allreduce.core.audit import Verdict
from edl_allreduce.errors import UsageError

ABOUT = """\
Prove from what the workers wrote down (--audit_dir of the job) that every record was used exactly once per
epoch, whatever happened to the workers. Exit code 1 when that is not so, 2 while the job still runs. After
`elasticdl stop` its last epoch may be incomplete. Records that could not be read are named with their number.

  elasticdl audit --job_name=digits
  elasticdl audit --audit_dir=audit --output=json
"""

CLEAN, NOT_CLEAN = 0, 1


def main(argv: list[str]) -> int:
    parser = job_parser("audit", "[--audit_dir=DIR] [--output=text|json]", ABOUT)
    parser.add_argument(
        "--audit_dir", metavar="DIR", default="", help="what the job was given as --audit_dir"
    )
    parser.add_argument(
        "--output", choices=("text", "json"), default="text", help="text, or JSON for scripts"
    )
    arguments = parser.read(argv)
    directory = arguments.audit_dir or _directory_of(arguments)
    from edl_allreduce.worker.loop.diary import audit

    verdict = audit(directory)
    if arguments.output == "json":
        fields = dataclasses.asdict(verdict)
        print(msgspec.json.encode({"clean": verdict.clean, **fields}).decode())
    else:
        print(_text(directory, verdict))
    return CLEAN if verdict.clean else NOT_CLEAN


def _directory_of(arguments: argparse.Namespace) -> str:
    job = resolve_job(arguments)
    if job.running() is not None:
        raise UsageError(f"job {job.name} still runs, and its workers still write; audit it when it is over.")
    return str(job.audit_dir())


def _text(directory: str, verdict: Verdict) -> str:
    lines = [f"audit of {outside.line(directory)}: {'clean' if verdict.clean else 'NOT CLEAN'}"]
    rows = {
        "steps": f"{verdict.steps} in {verdict.generations} rings",
        "records": f"{verdict.records} used; left out: {verdict.left_out or 'none'}",
        "epochs": f"{verdict.epochs} complete, every record exactly once in each"
        if verdict.clean
        else f"{verdict.epochs} complete",
        "made again": f"{verdict.redone} steps that only lost workers had applied",
    }
    if verdict.fingerprint:
        rows["weights"] = f"fingerprint {outside.name(verdict.fingerprint)} (SHA-256)"
    if verdict.begun_anew:
        rows["set back"] = verdict.begun_anew
    lines += [f"  {name:<11} {text}" for name, text in rows.items()]
    lines += [f"  problem     {outside.line(problem)}" for problem in verdict.problems]
    return "\n".join(lines)
