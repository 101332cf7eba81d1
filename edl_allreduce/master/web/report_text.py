"""The report of a job as Markdown, for a pull request or an issue. Pure: data of the page in, text out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from edl_allreduce import outside
from edl_allreduce.core.goodput import TITLES, Bucket
from edl_allreduce.core.progress import duration

SHOWN_PAUSES: Final = 30
SHOWN_EVENTS: Final = 40
SHOWN_LIVES: Final = 40
PHASES: Final = {
    "notice": "notice",
    "plan": "plan",
    "join": "join",
    "sync": "sync",
    "first_step": "first step",
}
_BUCKETS: Final = frozenset(bucket.value for bucket in Bucket)
_MARKUP: Final = str.maketrans({c: f"\\{c}" for c in "\\`*_{}[]<>#|~"})

Data = Mapping[str, Any]


def markdown(data: Data) -> str:
    """The whole report. `data`: an `Update` as JSON has it."""
    status: Data = data["status"]
    parts = [
        f"# {_text(status['job_name'])}: {_text(status['phase'])}",
        _text(status["reason"]),
        _table(("", ""), _figures(status).items()),
        *_spent(status.get("goodput") or {}),
        *_pauses(data["pauses"]),
        *_events(data["events"]),
        "## Configuration and versions",
        _table(("", ""), {**data["about"], **_flags(status["flags"])}.items()),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _figures(status: Data) -> dict[str, str]:
    tally, length = status["tally"], status["length"]
    rows = {"Progress": f"{status['step']:,} of {status['total_steps']:,} {status['counts']}s"}
    if length:
        rows["Epochs"] = f"{status['position'] / length['records']:.4g} of {length['epochs']:,}"
    rows["Time"] = duration(status["elapsed"])
    if status["loss"] is not None:
        rows["Loss"] = f"{status['loss']:.6g}"
    rows |= {f"Metric {name}": _number(value) for name, value in status["metrics"].items()}
    if tally["trained"]:
        rows["Throughput"] = f"{tally['records'] / tally['trained']:,.0f} records/s on average"
    rows["Workers lost"] = str(tally["losses"])
    if tally["pauses"]:
        longest, together = max(tally["pauses"]), sum(tally["pauses"])
        rows["Pauses"] = f"{len(tally['pauses'])}, longest {_short(longest)}, together {_short(together)}"
    if status.get("fingerprint"):
        rows["Fingerprint of the weights"] = status["fingerprint"]
    rows["Audit"] = status["audit"] or "none"
    if status["path"]:
        rows["Result"] = status["path"]
    return rows


def _spent(goodput: Data) -> list[str]:
    wall = goodput.get("wall") or 0.0
    if not wall:
        return []
    workers = goodput["worker_wall"]
    rows = []
    for bucket in TITLES:
        of_job, of_workers = (goodput[part].get(bucket, 0.0) for part in ("seconds", "worker_seconds"))
        if of_job or of_workers:
            share = (f"{of_job / wall:.1%}", f"{of_workers / workers:.1%}" if workers else "")
            rows.append((TITLES[bucket], _short(of_job), share[0], share[1]))
    productive = goodput["seconds"].get(Bucket.STEP, 0.0) / wall
    head = ("", "of the job's time", "", "of worker seconds")
    found = [f"## Where the time went: {productive:.0%} productive", _table(head, rows)]
    return [*found, *_causes(goodput, wall), *_lives(goodput)]


def _causes(goodput: Data, wall: float) -> list[str]:
    spent = [(cause, sum(seconds.values())) for cause, seconds in (goodput.get("reforms") or {}).items()]
    rows = [(cause, _short(seconds), f"{seconds / wall:.1%}") for cause, seconds in spent]
    return [_table(("re-forms because of", "of the job's time", ""), rows)] if rows else []


def _lives(goodput: Data) -> list[str]:
    lives = goodput.get("workers") or []
    rows = []
    for life in lives[-SHOWN_LIVES:]:
        lost = {name: spent for name, spent in life["seconds"].items() if name != Bucket.STEP}
        most = max(lost, key=lambda name: lost[name], default="")
        words = f"{TITLES[Bucket(most)]} {_short(lost[most])}" if most in _BUCKETS else ""
        share = life["seconds"].get(Bucket.STEP, 0.0) / life["lived"] if life["lived"] else 0.0
        rows.append((life["worker_id"], _short(life["lived"]), f"{share:.0%}", words))
    if not rows:
        return []
    return [_more(len(lives), SHOWN_LIVES), _table(("worker", "lived", "productive", "lost most to"), rows)]


def _pauses(pauses: Sequence[Data]) -> list[str]:
    made = [pause for pause in pauses if pause["survivors"]]
    rows = []
    for pause in made[-SHOWN_PAUSES:]:
        slowest = max(pause["survivors"], key=lambda one: sum(one[phase] for phase in PHASES))
        row = (pause["generation"], pause["reason"], pause["size"], _short(pause["seconds"]))
        rows.append((*row, *(_short(slowest[phase]) for phase in PHASES)))
    if not rows:
        return []
    head = ("generation", "because", "ring", "pause", *PHASES.values())
    return ["## Pauses of the ring", _more(len(made), SHOWN_PAUSES), _table(head, rows)]


def _events(events: Sequence[Data]) -> list[str]:
    rows = [
        (outside.moment(event["wall"], "%H:%M:%S"), event["kind"], outside.line(event["text"]))
        for event in events[-SHOWN_EVENTS:]
    ]
    return ["## Events", _more(len(events), SHOWN_EVENTS), _table(("", "", ""), rows)] if rows else []


def _flags(flags: Iterable[str]) -> dict[str, str]:
    pairs = (flag.partition("=") for flag in flags)
    return {name: value for name, _, value in pairs}


def _more(count: int, shown: int) -> str:
    return f"The last {shown} of {count:,}." if count > shown else ""


def _table(head: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    lines = [head, ["---"] * len(head), *([_text(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _text(value: object) -> str:
    """What came from outside is text, whatever Markdown would make of it."""
    return outside.line(value).translate(_MARKUP)


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.6g}"


def _short(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else duration(seconds)
