"""Faults addressed by coordinates: "kill rank 1 at step 5".

A test describes faults in EDL_FAULTS (JSON) and names a directory in EDL_FAULT_DIR. The product calls
`edl_allreduce.faults.reach(point, **coordinates)` at a handful of places. A fault fires once in the whole
job, whatever processes reach it, and leaves a file that proves it.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from edl_allreduce import clock
from edl_allreduce.contract import FAULT_DIR, FAULTS
from edl_allreduce.faults import Point

RELEASED = "released"
HOLD_SECONDS = 0.02

ActionName = Literal["kill", "freeze", "terminate", "block", "crash", "hold", "rot"]


class InjectedCrash(RuntimeError):
    """Raised by the action `crash`, as user code might."""


@dataclass(frozen=True)
class Fault:
    """`action` happens when `point` is reached with all of these coordinates."""

    point: Point
    action: ActionName
    at: dict[str, int] = field(default_factory=dict)
    repeat: bool = False
    """Fire every time instead of once."""

    def matches(self, point: str, coordinates: dict[str, int]) -> bool:
        return point == self.point and all(coordinates.get(k) == v for k, v in self.at.items())


def environment(faults: list[Fault], directory: Path) -> dict[str, str]:
    """What a test adds to the environment of the job."""
    directory.mkdir(parents=True, exist_ok=True)
    return {FAULTS: json.dumps([asdict(f) for f in faults]), FAULT_DIR: str(directory)}


def fired(directory: Path) -> list[dict[str, int | str]]:
    """The faults that fired, each with the coordinates and the pid at which it did."""
    return [json.loads(path.read_text()) for path in sorted(directory.glob("fired-*"))]


def _load() -> list[Fault]:
    text = os.environ.get(FAULTS, "")
    return [Fault(**entry) for entry in json.loads(text)] if text else []


_faults = _load()
lent: dict[str, Any] = {}
"""By `edl_allreduce.faults.lend`."""


def happen(point: Point, coordinates: dict[str, int]) -> None:
    """What was asked for at this place; `edl_allreduce.faults.reach` calls it in jobs under test."""
    for number, fault in enumerate(_faults):
        if fault.matches(point, coordinates) and _claim(number, fault, coordinates):
            _act(fault)


def _claim(number: int, fault: Fault, coordinates: dict[str, int]) -> bool:
    story = {"point": fault.point, "action": fault.action, "pid": os.getpid(), **coordinates}
    suffix = f"-{os.getpid()}" if fault.repeat else ""
    path = Path(os.environ[FAULT_DIR]) / f"fired-{number:03d}{suffix}"
    draft = path.with_name(f".{path.name}-{os.getpid()}-{threading.get_ident()}")
    draft.write_text(json.dumps(story))  # whoever sees the file sees all of it
    try:
        path.hardlink_to(draft)
    except FileExistsError:
        return fault.repeat
    finally:
        draft.unlink()
    return True


def release(directory: Path) -> None:
    """Let everybody go on who is held."""
    (directory / RELEASED).touch()


def _act(fault: Fault) -> None:
    match fault.action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "freeze":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "terminate":
            os.kill(os.getpid(), signal.SIGTERM)
        case "block":
            threading.Event().wait()
        case "crash":
            raise InjectedCrash("a fault was injected here")
        case "hold":
            while not (Path(os.environ[FAULT_DIR]) / RELEASED).exists():
                clock.sleep(HOLD_SECONDS)
        case "rot":
            _flip_a_bit(lent["weights"][0])


def _flip_a_bit(variable: Any) -> None:
    """The lowest of one number, as bad memory might: nothing in the loss will ever show it."""
    values = variable.numpy().copy()
    values.reshape(-1).view(np.uint8)[0] ^= 1
    variable.assign(values)
