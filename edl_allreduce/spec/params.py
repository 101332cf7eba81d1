"""Small syntaxes of single flags: parameters, variables, labels, taints, priorities, addresses."""

from __future__ import annotations

import dataclasses
import enum
import math
import re
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Final

from edl_allreduce.core.trainingjob import moment
from edl_allreduce.errors import UsageError

# A comma ends a value only where the next variable begins: values may contain commas.
_ENV_BOUNDARY: Final = re.compile(r",(?=\s*[A-Za-z_][A-Za-z0-9_.-]*=)")
_ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_LABEL_KEY: Final = re.compile(
    r"(?:[a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
)
_LABEL_VALUE: Final = re.compile(r"(?:[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
_CLASS_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_DECIMAL: Final = re.compile(r"[+-]?(\d{1,40}\.?\d{0,40}|\.\d{1,40})")
_PORT: Final = re.compile(r"[0-9]{1,5}")


def parse_params(text: str) -> dict[str, str]:
    """'a=1; b=2' of --aux_params, --model_params and --data_reader_params. A value may contain '='."""
    result: dict[str, str] = {}
    for part in text.split(";"):
        if not part.strip():
            continue
        name, equals, value = part.partition("=")
        name = name.strip()
        if not equals or not name:
            raise UsageError(
                f"{part.strip()!r}: expected name=value pairs separated by ';', as in 'a=1; b=2'"
            )
        _put(result, name, value.strip())
    return result


def parse_envs(text: str) -> dict[str, str]:
    """'K=V,K=V' of --envs. A value may contain commas."""
    result: dict[str, str] = {}
    for part in _ENV_BOUNDARY.split(text):
        if not part.strip():
            continue
        name, equals, value = part.partition("=")
        name = name.strip()
        if not equals or not _ENV_NAME.fullmatch(name):
            raise UsageError(f"{part.strip()!r}: expected NAME=VALUE pairs separated by ',', as in 'A=1,B=x'")
        _put(result, name, value)
    return result


def parse_node_selector(text: str) -> dict[str, str]:
    """'label=value,label=value' of --worker_node_selector."""
    result: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals or not _LABEL_KEY.fullmatch(name) or not _LABEL_VALUE.fullmatch(value):
            raise UsageError(f"{part!r}: expected label=value, as in 'cloud.google.com/gke-spot=true'")
        _put(result, name, value)
    return result


class Effect(enum.StrEnum):
    """What a taint does to pods that do not tolerate it."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


@dataclasses.dataclass(frozen=True)
class Toleration:
    """A taint that workers accept. Without a value any value is accepted, without an effect any effect."""

    key: str
    value: str | None
    effect: Effect | None


def parse_tolerations(text: str) -> tuple[Toleration, ...]:
    """'key=value:Effect,key:Effect,key' of --worker_tolerations: taints as kubectl writes them."""
    return tuple(_toleration(part.strip()) for part in text.split(",") if part.strip())


def _toleration(text: str) -> Toleration:
    taint, colon, effect = text.partition(":")
    key, equals, value = taint.partition("=")
    if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
        raise UsageError(f"{text!r}: expected key=value:Effect or key:Effect, as kubectl writes a taint")
    if colon and effect not in list(Effect):
        raise UsageError(f"{text!r}: the effect must be one of {', '.join(Effect)}")
    return Toleration(key, value if equals else None, Effect(effect) if colon else None)


@dataclasses.dataclass(frozen=True)
class WorkerPriority:
    """PriorityClass of each worker: one class for all, or `high` for some ids and `low` for the rest."""

    class_name: str
    high_fraction: Fraction | None = None

    def class_of(self, slot: int, num_workers: int, together: int = 0) -> str:
        """The class of the worker in one of the slots 0 ... num_workers-1; '' means the cluster's default.

        A relaunched worker has a new id but takes over the slot of the one that it replaces. `together`: so
        many of the first ones are one thing to a queue, which must not lose it for a worker that is less.
        """
        if self.high_fraction is None:
            return self.class_name
        return "high" if slot in high_slots(num_workers, self.high_fraction, together) else "low"


def parse_worker_priority(text: str) -> WorkerPriority:
    """A class name, or a fraction of workers that are high: '0.5', in older scripts 'high=0.5'."""
    value = text.strip()
    fraction = value.removeprefix("high=")
    if _DECIMAL.fullmatch(fraction):
        part = Fraction(fraction)
        if not 0 <= part <= 1:
            raise UsageError(f"{text!r}: a fraction of the workers must be between 0 and 1")
        return WorkerPriority("", part)
    return WorkerPriority(parse_class_name(value))


def parse_class_name(text: str) -> str:
    """Kubernetes names a PriorityClass like a DNS name; nothing means the cluster's default."""
    if text and not _CLASS_NAME.fullmatch(text):
        raise UsageError(
            f"{text!r}: expected high, low or the name of a PriorityClass (lower case, '-', '.')"
        )
    return text


def high_slots(num_workers: int, fraction: Fraction, together: int = 0) -> frozenset[int]:
    """ElasticDL's rule: ceil(n * f) workers are high, taken in turn from both ends of 0 ... n-1.

    Where the first ones belong together it is they and those after them.
    """
    count = math.ceil(num_workers * fraction)
    if count and together:
        return frozenset(range(max(count, together)))
    from_front = math.ceil(count / 2)
    return frozenset(range(from_front)) | frozenset(range(num_workers - (count - from_front), num_workers))


def split_model_def(model_def: str) -> tuple[PurePosixPath, str]:
    """'mnist.cnn.custom_model' is custom_model in mnist/cnn.py, seen from the model zoo."""
    *parts, symbol = model_def.split(".")
    if not parts or not all(part.isidentifier() for part in [*parts, symbol]):
        raise UsageError(
            f"{model_def!r}: expected the dotted path of a function or class below --model_zoo, "
            "as in digits.mlp.custom_model for custom_model in digits/mlp.py"
        )
    return PurePosixPath(*parts).with_suffix(".py"), symbol


def split_address(text: str) -> tuple[str, int]:
    """'host:port' or '[ipv6]:port'; a socket of this machine ('unix:/path') has no port."""
    if text.startswith("unix:/"):
        return text, 0
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise UsageError(f"{text!r}: write an IPv6 address in brackets, as in [::1]:50001")
    if not colon or not host or not _PORT.fullmatch(port) or not 0 < int(port) < 65536:
        raise UsageError(f"{text!r}: expected HOST:PORT, as in localhost:50001")
    return host, int(port)


def parse_page_port(text: str) -> int | None:
    """A port of --dashboard_port; 0 for auto, None for off."""
    if text in ("auto", "off"):
        return 0 if text == "auto" else None
    if not _PORT.fullmatch(text) or not 0 < int(text) <= 65535:
        raise UsageError(f"{text!r}: expected auto, off or a port from 1 to 65535")
    return int(text)


def parse_pattern(text: str) -> re.Pattern[str]:
    """The regular expression of --populate_env_names."""
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"not a regular expression: {error}") from error


def parse_moment(text: str) -> float:
    """A moment of --deadline in seconds since 1970, from Kubernetes' form of it."""
    seconds = moment(text)
    if seconds is None:
        raise UsageError(f"{text!r}: expected a date, a time and its zone, as in 2030-12-31T08:00:00Z")
    return seconds


def parse_label_value(text: str) -> str:
    """The name of --queue_name, which becomes a label of Kubernetes."""
    if not _LABEL_VALUE.fullmatch(text):
        raise UsageError(f"{text!r}: expected letters, digits, '-', '_' and '.', at most 63")
    return text


def _put(result: dict[str, str], name: str, value: str) -> None:
    if name in result:
        raise UsageError(f"{name!r} is given twice")
    result[name] = value
