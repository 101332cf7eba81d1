"""Between argv and the job: a parser generated from `JobSpec`, and the way back.

argparse splits the words and prints help. Values are converted here, so that a user sees all mistakes
at once.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import functools
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Final

from edl_allreduce.errors import UsageError
from edl_allreduce.spec import validate
from edl_allreduce.spec.choices import Strategy
from edl_allreduce.spec.declare import Command, Flag, Group, flag_of, flags_of
from edl_allreduce.spec.job import JobSpec
from edl_allreduce.spec.legacy import LEGACY, PARAMETER_SERVER_STRATEGIES, Kind, LegacyFlag
from edl_allreduce.spec.words import Parser, nearest

# ElasticDL's rule: these words are true and every other one is false.
_TRUE: Final = frozenset({"true", "yes", "t", "y"})
_FALSE: Final = frozenset({"false", "no", "f", "n"})

# What argparse stores for a boolean flag without a value; no user can type it, because argv holds no NUL.
_BARE: Final = "\0"

_FIELDS: Final[Mapping[str, dataclasses.Field[Any]]] = {f.name: f for f in flags_of(JobSpec)}

_PROGRAMS: Final = {
    Command.TRAIN: "elasticdl train",
    Command.EVALUATE: "elasticdl evaluate",
    Command.PREDICT: "elasticdl predict",
    Command.MASTER: "python -m edl_allreduce.master.main",
    Command.WORKER: "python -m edl_allreduce.worker.main",
}

_USAGE: Final = {
    Command.TRAIN: "--job_name=NAME --model_def=DOTTED.PATH --training_data=PATH [flags]",
    Command.EVALUATE: "--job_name=NAME --model_def=DOTTED.PATH --validation_data=PATH "
    "--checkpoint_dir_for_init=DIR [flags]",
    Command.PREDICT: "--job_name=NAME --model_def=DOTTED.PATH --prediction_data=PATH "
    "--checkpoint_dir_for_init=DIR [flags]",
    Command.MASTER: "--job_name=NAME --num_workers=0 [flags]",
    Command.WORKER: "--worker_id=N --master_addr=HOST:PORT [flags]",
}

_ABOUT: Final = {
    Command.TRAIN: """\
Train a model. Workers may come and go: no step is lost and each record is used exactly once per epoch.

Four workers on this machine:
  elasticdl train --job_name=digits --model_zoo=model_zoo --model_def=digits.mlp.custom_model \\
      --training_data=data/train --num_workers=4

The same on Kubernetes, on preemptible pods:
  elasticdl train --job_name=digits --image_name=example/digits:1 --model_zoo=model_zoo \\
      --model_def=digits.mlp.custom_model --training_data=/data/train --num_workers=4 \\
      --worker_pod_priority=low --volume="claim_name=data,mount_path=/data"

Your own training script instead of a model file:
  elasticdl train --job_name=mine --num_workers=4 --job_command="python my_train.py"
""",
    Command.EVALUATE: """\
Evaluate a trained model.

  elasticdl evaluate --job_name=digits-eval --model_zoo=model_zoo --model_def=digits.mlp.custom_model \\
      --validation_data=data/test --checkpoint_dir_for_init=checkpoints
""",
    Command.PREDICT: """\
Predict with a trained model.

  elasticdl predict --job_name=digits-predict --model_zoo=model_zoo \\
      --model_def=digits.mlp.custom_model --prediction_data=data/new \\
      --checkpoint_dir_for_init=checkpoints
""",
    Command.MASTER: """\
Start a master by hand. With --num_workers=0 it starts no workers and serves those that you start:

  python -m edl_allreduce.master.main --job_name=test --num_workers=0 --model_zoo=model_zoo \\
      --model_def=digits.mlp.custom_model --training_data=data/train
""",
    Command.WORKER: """\
Start a worker by hand; any number of them, killed and added freely:

  python -m edl_allreduce.worker.main --worker_id=1 --master_addr=localhost:50001
""",
}


@dataclasses.dataclass(frozen=True)
class ParsedJob:
    """A job as the user asked for it, and what the user should be told about the flags."""

    spec: JobSpec
    notices: tuple[str, ...]
    # Names of the fields that the command line set, directly or through an old flag.
    given: frozenset[str]


def parse_job(command: Command | str, argv: Sequence[str]) -> ParsedJob:
    """Read flags. Raises `UsageError` that lists every problem; `--help` prints help and exits 0."""
    command = Command(command)
    namespace, rest = _parser(command).parse_known_args(list(argv))
    problems, meant = _unknown(command, rest)
    notices: list[str] = []
    raw = _translate(command, vars(namespace), notices)

    values: dict[str, Any] = {}
    for name, text in raw.items():
        try:
            values[name] = _convert(_FIELDS[name], text, notices)
        except ValueError as error:
            problems.append(f"--{name}={text}: {error}")

    spec = JobSpec(**{**_command_defaults(command), **values})
    spec = _one_process(spec, frozenset(values), notices)
    # Checks across flags need values that make sense one by one; a misspelt flag is not also a missing one.
    unreadable = (frozenset(raw) - frozenset(values)) | meant
    problems.extend(validate.problems(command, spec, unreadable=unreadable))
    if problems:
        raise UsageError(_listed(problems, f"See `{_PROGRAMS[command]} --help`."))
    notices.extend(validate.notices(command, spec, frozenset(values)))
    return ParsedJob(spec, tuple(notices), frozenset(values))


def to_argv(spec: JobSpec, command: Command | str = Command.TRAIN) -> list[str]:
    """Flags that make `parse_job(command, ...)` give this spec again, as far as the command uses it; those at
    their default are left out."""
    command = Command(command)
    defaults = JobSpec(**_command_defaults(command))
    return [
        f"--{name}={_text(value)}"
        for name, field in _FIELDS.items()
        if (value := getattr(spec, name)) != getattr(defaults, name) and command in flag_of(field).commands
    ]


def help_text(command: Command | str) -> str:
    """What `--help` prints."""
    return _parser(Command(command)).format_help()


# -- words ---------------------------------------------------------------------------------------------------


@functools.cache
def _parser(command: Command) -> argparse.ArgumentParser:
    parser = Parser(_PROGRAMS[command], _USAGE[command], _ABOUT[command], _epilog())
    groups = {
        group: parser.add_argument_group(str(group))
        for group in Group
        if any(_shown(command, flag_of(f), group) for f in _FIELDS.values())
    }
    defaults = JobSpec(**_command_defaults(command))
    for name, field in _FIELDS.items():
        info = flag_of(field)
        shown = _shown(command, info, info.group)
        target = groups[info.group] if shown else parser
        target.add_argument(
            f"--{name}",
            dest=name,
            default=argparse.SUPPRESS,
            **_arity(isinstance(field.default, bool)),
            metavar=info.metavar or _choices_metavar(field.default),
            help=_help(info, getattr(defaults, name)) if shown else argparse.SUPPRESS,
        )
    for legacy in LEGACY.values():
        parser.add_argument(
            f"--{legacy.name}",
            dest=legacy.name,
            default=argparse.SUPPRESS,
            **_arity(legacy.boolean_default is not None),
            help=argparse.SUPPRESS,
        )
    return parser


def _arity(boolean: bool) -> dict[str, Any]:
    return {"nargs": "?", "const": _BARE} if boolean else {}


def _shown(command: Command, info: Flag, group: Group) -> bool:
    return info.group is group and command in info.commands


def _choices_metavar(default: object) -> str:
    if isinstance(default, bool):
        return "BOOL"
    assert isinstance(default, enum.StrEnum)
    return "|".join(type(default))


def _help(info: Flag, default: object) -> str:
    shown = "" if default is None or default == "" else f" (default: {_text(default)})"
    # argparse treats % as the start of a placeholder.
    return f"{info.help}{shown}".replace("%", "%%")


def _epilog() -> str:
    servers = sum(1 for legacy in LEGACY.values() if legacy.kind is Kind.PARAMETER_SERVER)
    return (
        "BOOL: true, yes, t or y is true, any other word is false; the bare flag turns the default around.\n"
        f"{len(LEGACY)} older flags are accepted with a notice, {servers} of them for parameter servers."
    )


def _unknown(command: Command, rest: Sequence[str]) -> tuple[list[str], frozenset[str]]:
    """Words that argparse did not know, and the flags that were probably meant.

    A word right after an unknown flag is taken for its value.
    """
    known = [name for name, field in _FIELDS.items() if command in flag_of(field).commands]
    problems: list[str] = []
    meant: set[str] = set()
    after_unknown_flag = False
    for word in rest:
        if word.startswith("-") and len(word) > 1:
            name = word.lstrip("-").split("=", 1)[0].replace("-", "_")
            problem = f"Unknown flag {word.split('=', 1)[0]}."
            if guess := nearest(name, known):
                problem += f" Did you mean --{guess}?"
                meant.add(guess)
            problems.append(problem)
            after_unknown_flag = "=" not in word
        elif after_unknown_flag:
            after_unknown_flag = False
        else:
            problems.append(f"Unexpected word {word!r}: flags are written --name=value or --name value.")
    return problems, frozenset(meant)


# -- values --------------------------------------------------------------------------------------------------


def _translate(command: Command, raw: Mapping[str, str], notices: list[str]) -> dict[str, str]:
    """Drop what has no meaning here, translate old flags, say so. What remains are fields of the job."""
    current: dict[str, str] = {}
    for name, text in raw.items():
        if name not in _FIELDS:
            continue
        users = flag_of(_FIELDS[name]).commands
        if command not in users:
            names = " and ".join(sorted(users - {Command.MASTER, Command.WORKER} or users))
            notices.append(f"--{name} is a flag of {names}; {command} does not use it.")
        elif name == "distribution_strategy" and text.strip().lower() in PARAMETER_SERVER_STRATEGIES:
            notices.append(
                f"--distribution_strategy={text or repr('')}: there are no parameter servers; "
                f"going on with {Strategy.ALLREDUCE}."
            )
        else:
            current[name] = text
    for name, text in raw.items():
        if name in LEGACY:
            current = _legacy(LEGACY[name], text, current, notices)
    return current


def _legacy(legacy: LegacyFlag, text: str, current: Mapping[str, str], notices: list[str]) -> dict[str, str]:
    if legacy.boolean_default is not None:
        text = _text(not legacy.boolean_default if text == _BARE else text.strip().lower() in _TRUE)
    result = dict(current)
    if legacy.translate is None:
        if text not in legacy.quiet:
            verb = "has no effect" if legacy.kind is Kind.PARAMETER_SERVER else "is retired"
            notices.append(f"--{legacy.name}={text} {verb}: {legacy.instead}.")
        return result
    today = legacy.translate(text, current)
    result.update((name, value) for name, value in today.items() if name not in current)
    read_as = " ".join(f"--{name}={value}" for name, value in today.items() if name not in current)
    given = " and ".join(f"--{name}" for name in today if name in current)
    notices.append(
        f"--{legacy.name} is retired"
        + (f"; it is read as {read_as}" if read_as else "")
        + (f"; {given} is given and counts" if given else "")
        + "."
    )
    return result


def _convert(field: dataclasses.Field[Any], text: str, notices: list[str]) -> object:
    kind = kind_of(field.name)
    if kind is bool:
        return _boolean(field, text, notices)
    if issubclass(kind, enum.StrEnum):
        return _choice(kind, text)
    if kind is str:
        return text
    value = _number(kind, text)
    minimum = flag_of(field).minimum
    if minimum is not None and value < minimum:
        raise ValueError(f"must be at least {minimum:g}")
    return value


@functools.cache
def kind_of(name: str) -> type:
    """The type behind a field; `int | None` counts as int, since a flag that is given has a value."""
    hint = typing.get_type_hints(JobSpec)[name]
    if isinstance(hint, types.UnionType):
        hint = next(member for member in typing.get_args(hint) if member is not type(None))
    assert isinstance(hint, type)
    return hint


def _boolean(field: dataclasses.Field[Any], text: str, notices: list[str]) -> bool:
    if text == _BARE:
        return not field.default
    word = text.strip().lower()
    if word not in _TRUE | _FALSE:
        notices.append(
            f"--{field.name}={text} counts as false: only {', '.join(sorted(_TRUE))} (in any case) are true."
        )
    return word in _TRUE


def _choice(kind: type[enum.StrEnum], text: str) -> enum.StrEnum:
    for member in kind:
        if member.lower() == text.strip().lower():
            return member
    guess = nearest(text, list(kind))
    raise ValueError(f"must be one of {', '.join(kind)}" + (f"; did you mean {guess}?" if guess else ""))


def _number(kind: type, text: str) -> int | float:
    try:
        value = int(text) if kind is int else float(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise ValueError(f"must be {what}") from None
    if not math.isfinite(value):
        raise ValueError("must be a finite number")
    return value


def _one_process(spec: JobSpec, given: frozenset[str], notices: list[str]) -> JobSpec:
    """A Local job is one process whatever else was said, so that its batch is one worker's batch."""
    if spec.distribution_strategy is not Strategy.LOCAL:
        return spec
    ignored = [n for n in ("num_workers", "min_workers") if n in given and getattr(spec, n) != 1]
    if ignored:
        names = " and ".join(f"--{name}" for name in ignored)
        notices.append(f"{names} not used: the Local strategy is one process.")
    return dataclasses.replace(spec, num_workers=1, min_workers=1)


def _command_defaults(command: Command) -> dict[str, Any]:
    return {
        name: flag_of(field).default_for[command]
        for name, field in _FIELDS.items()
        if command in flag_of(field).default_for
    }


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _listed(problems: Sequence[str], hint: str) -> str:
    if len(problems) == 1:
        return f"{problems[0]}\n{hint}"
    lines = "\n".join(f"  - {problem}" for problem in problems)
    return f"{len(problems)} problems:\n{lines}\n{hint}"
