"""Whether a checkpoint is of this job and of this model, and with which one a job begins."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from edl_allreduce.core import protocol
from edl_allreduce.core.course import differences
from edl_allreduce.errors import CheckpointError, UsageError
from edl_allreduce.storage.remote import store
from edl_allreduce.storage.url import Place, Url, place
from edl_allreduce.worker.checkpoint.format import DONE, NAME, Array, JobIdentity, Loaded
from edl_allreduce.worker.checkpoint.shelf import newest, shelf

log = logging.getLogger(__name__)


class HoldsState(Protocol):
    """What a checkpoint needs of the trainer."""

    def state(self) -> list[Array]: ...

    def names(self) -> tuple[list[str], list[str]]: ...


def check_identity(loaded: Loaded, now: JobIdentity) -> None:
    """Whether this job can go on where the other was."""
    was, directory = loaded.contents.course, loaded.path.parent
    if was.job_name != now.job_name:
        raise UsageError(
            f"{directory} holds checkpoints of the job {was.job_name}, this is {now.job_name}. "
            f"Give this job a --checkpoint_dir of its own; to begin with the other's model, add "
            f"--checkpoint_dir_for_init={directory}."
        )
    for name in ("records", "fingerprint", "seed", "shuffle"):
        if getattr(was, name) != getattr(now, name):
            raise UsageError(
                f"{loaded.path} was made with {name}={getattr(was, name)}, the job now has "
                f"{name}={getattr(now, name)}: the order of records differs, so it cannot go on where it "
                "was. Use the same data and flags, or begin anew with another --checkpoint_dir "
                "(--checkpoint_dir_for_init takes the model over)."
            )

    if bool(was.bits) != bool(now.bits):
        with_it, without = ("was", "is not") if was.bits else ("was not", "is")
        raise UsageError(
            f"{loaded.path} {with_it} made with --reproducible, and this job {without}: going on would "
            "give neither the one nor the other. Use the same flags, or begin anew with another "
            "--checkpoint_dir (--checkpoint_dir_for_init takes the model over)."
        )
    if difference := differences(was.bits, now.bits):
        raise UsageError(
            f"{loaded.path} was made where --reproducible gives other bits: {difference} (the rest: the "
            "checkpoint). Go on where it was made, or begin anew with another --checkpoint_dir."
        )


def check_fit(loaded: Loaded, trainer: HoldsState, *, model_only: bool = False) -> None:
    """Whether the variables are those of this model."""
    arrays, (model, optimizer) = trainer.state(), trainer.names()
    contents = loaded.contents
    parts = [("model", contents.model, arrays[: len(model)], model)]
    if not model_only:
        parts.append(("optimizer", contents.optimizer, arrays[len(model) :], optimizer))
    for what, stored, own, names in parts:
        if len(stored) != len(own):
            raise UsageError(
                f"{loaded.path} holds {len(stored)} variables of the {what}, this {what} has {len(own)}: "
                "it was made by another one"
            )
        for variable, array, name in zip(stored, own, names, strict=True):
            if variable.shape != list(array.shape) or variable.dtype != array.dtype.name:
                raise UsageError(
                    f"{loaded.path} was made by another {what}: {variable.path} is {variable.dtype}"
                    f"{variable.shape}, but {name} is {array.dtype.name}{list(array.shape)} here"
                )


def load_for_init(
    directory: str, trainer: HoldsState, send: Callable[[protocol.Note], None] = lambda note: None
) -> Loaded:
    """The checkpoint that --checkpoint_dir_for_init names: the directory of several, or one of them."""
    path = place(directory)
    if is_version(path):
        loaded: Loaded | None = shelf(str(path.parent)).read(path)
        broken: list[str] = []
    else:
        loaded, broken = newest(shelf(directory))
    if loaded is None:
        raise CheckpointError(nothing_to_begin_with(path, broken))
    for problem in broken:
        text = f"{problem}; {loaded.path.name} is used instead"
        log.warning("%s", text)
        send(protocol.Note(protocol.NoteKind.WARNING, text, once=True))
    check_fit(loaded, trainer, model_only=True)
    return loaded


def is_version(path: Place) -> bool:
    """Whether this is one checkpoint, and not the directory of several."""
    if not NAME.fullmatch(path.name):
        return False
    return store().exists(path / DONE) if isinstance(path, Url) else (path / DONE).exists()


def nothing_to_begin_with(path: Place, broken: Sequence[str] = ()) -> str:
    if isinstance(path, Url):
        there = "none"
    else:
        there = ", ".join(sorted(p.name for p in path.iterdir())[:5]) if path.is_dir() else "no directory"
    found = "; ".join(broken[:3]) or there or "nothing"
    return (
        f"--checkpoint_dir_for_init={path}: expected a whole checkpoint (version-<step>) there, found {found}"
    )
