"""Flags whose text has a syntax of its own, in the shape that Kubernetes gives such things, and back.

What a shape says and the flag's syntax cannot (a comma in the path of a volume) is refused, not bent: the
text is read again, and must mean the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from edl_allreduce.errors import UsageError
from edl_allreduce.spec.job import JobSpec
from edl_allreduce.spec.params import Toleration, parse_envs, parse_node_selector, parse_tolerations
from edl_allreduce.spec.resource.names import Object
from edl_allreduce.spec.resource.places import PLAIN, SHAPED
from edl_allreduce.spec.resource.untyped import checked, look, objects, text_map
from edl_allreduce.spec.volumes import Claim, HostPath, Mount, Volumes, parse_volumes

Placed = tuple[tuple[str, ...], Any]
"""A path in spec, and what stands there."""

BATCH_WORKERS: Final = ("training", "batchWorkers")
REPLICAS: Final = ("workers", "replicas")
MIN: Final = PLAIN["min_workers"]
MOUNTS: Final = ("volumeMounts",)

_DEFAULTS: Final = JobSpec()

# Our names of ElasticDL's pieces: `master_spec` and `worker_spec` are older names of the pods' pieces.
TEMPLATES: Final[Mapping[str, tuple[str, ...]]] = {
    "pods": ("pod_spec",),
    "master": ("master_pod_spec", "master_spec"),
    "workers": ("worker_pod_spec", "worker_spec"),
    "service": ("service_spec",),
}


def read_shaped(spec: Object) -> dict[str, Any]:
    """Flags by name, from the objects and lists of a resource."""
    return {
        **_read_size(spec),
        **_read_resources(spec, "worker", "workers"),
        **_read_resources(spec, "master", "master"),
        **_read_tolerations(spec),
        **_read_node_selector(spec),
        **_read_volumes(spec),
        **_read_env(spec),
        **_read_templates(spec),
    }


def write_shaped(job: JobSpec) -> list[Placed]:
    """What stands where, of flags that are not at their default."""
    typed = job.typed
    placed = [
        *_write_size(job),
        *_write_resources(job, "worker", "workers"),
        *_write_resources(job, "master", "master"),
        (SHAPED["worker_tolerations"], [_toleration(each) for each in typed.worker_tolerations]),
        (SHAPED["worker_node_selector"], dict(typed.worker_node_selector)),
        *_write_volumes(typed.volumes),
        (SHAPED["envs"], [{"name": name, "value": value} for name, value in typed.envs.items()]),
        (SHAPED["cluster_spec_json"], _write_templates(job.cluster_spec_json)),
    ]
    return [(path, value) for path, value in placed if value or path[-1] == "requests"]


def _same(path: tuple[str, ...], wanted: object, read: object, cure: str) -> None:
    if wanted != read:
        raise UsageError(f"spec.{'.'.join(path)}: {cure}")


# ------------------------------------------------------------------------------------------------------ size


def _read_size(spec: Object) -> dict[str, Any]:
    most, batch = look(spec, SHAPED["num_workers"]), look(spec, BATCH_WORKERS)
    if most is None:
        raise UsageError("spec.workers.max is missing: how many workers may the job have?")
    most = checked(most, int, SHAPED["num_workers"])
    if batch is None:
        return {"num_workers": most}
    return {"num_workers": checked(batch, int, BATCH_WORKERS), "max_workers": most}


def _write_size(job: JobSpec) -> list[Placed]:
    """The least size too, where it is the default: `kubectl get` shows what is written."""
    least, most = (MIN, job.min_workers), SHAPED["num_workers"]
    if not job.max_workers:
        return [least, (most, job.num_workers)]
    return [least, (most, job.max_workers), (BATCH_WORKERS, job.num_workers)]


# ------------------------------------------------------------------------------------------------- resources


def _read_resources(spec: Object, role: str, section: str) -> dict[str, Any]:
    """As in a container, what has only limits asks for as much."""
    requests = text_map(spec, (section, "resources", "requests"))
    limits = text_map(spec, (section, "resources", "limits"))
    requests = limits if requests is None else requests
    result = {}
    if requests is not None:
        result[f"{role}_resource_request"] = _joined(requests)
    if limits:
        result[f"{role}_resource_limit"] = _joined(limits)
    return result


def _write_resources(job: JobSpec, role: str, section: str) -> list[Placed]:
    request, limit = f"{role}_resource_request", f"{role}_resource_limit"
    placed: list[Placed] = []
    if getattr(job, request) != getattr(_DEFAULTS, request) or getattr(job, limit):
        placed.append((SHAPED[request], dict(getattr(job.typed, request))))
    return [*placed, (SHAPED[limit], dict(getattr(job.typed, limit)))]


def _joined(pairs: Mapping[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in pairs.items())


# ----------------------------------------------------------------------------------------------------- nodes


def _read_tolerations(spec: Object) -> dict[str, Any]:
    path = SHAPED["worker_tolerations"]
    given = [{key: checked(t[key], str, (*path, key)) for key in t} for t in objects(spec, path)]
    if not given:
        return {}
    cure = "expected key, operator (Equal or Exists), value and effect; others go to templates.workers"
    for each in given:
        _same(path, True, set(each) <= {"key", "operator", "value", "effect"}, cure)
        _same(path, True, each.get("operator", "Equal") in ("Equal", "Exists"), cure)
    text = ",".join(_taint(each) for each in given)
    again = [_toleration(each) for each in parse_tolerations(text)]
    _same(path, [_plainly(each) for each in given], [_plainly(each) for each in again], cure)
    return {"worker_tolerations": text}


def _taint(toleration: Mapping[str, str]) -> str:
    value = "" if toleration.get("operator") == "Exists" else f"={toleration.get('value', '')}"
    effect = toleration.get("effect", "")
    return f"{toleration.get('key', '')}{value}" + (f":{effect}" if effect else "")


def _plainly(toleration: Mapping[str, str]) -> tuple[str, ...]:
    operator = toleration.get("operator", "Equal")
    return (toleration.get("key", ""), operator, toleration.get("value", ""), toleration.get("effect", ""))


def _toleration(toleration: Toleration) -> Object:
    value = {"operator": "Exists"} if toleration.value is None else {"value": toleration.value}
    effect = {} if toleration.effect is None else {"effect": toleration.effect.value}
    return {"key": toleration.key, **value, **effect}


def _read_node_selector(spec: Object) -> dict[str, Any]:
    path = SHAPED["worker_node_selector"]
    labels = text_map(spec, path) or {}
    text = _joined(labels)
    _same(path, labels, parse_node_selector(text), "expected labels of nodes with their values")
    return {"worker_node_selector": text} if text else {}


# --------------------------------------------------------------------------------------------------- volumes


def _read_volumes(spec: Object) -> dict[str, Any]:
    sources = {_name(volume, SHAPED["volume"]): _source(volume) for volume in objects(spec, SHAPED["volume"])}
    mounts = objects(spec, MOUNTS)
    parts: list[str] = []
    wanted: list[tuple[Claim | HostPath, str, str]] = []
    for mount in mounts:
        name = _name(mount, MOUNTS)
        if name not in sources:
            raise UsageError(f"spec.volumeMounts: there is no volume {name!r} in spec.volumes")
        place = checked(mount.get("mountPath"), str, (*MOUNTS, "mountPath"))
        below = checked(mount.get("subPath", ""), str, (*MOUNTS, "subPath"))
        wanted.append((sources[name], place, below))
        parts.append(_volume_text(*wanted[-1]))
    idle = sorted(sources.keys() - {mount["name"] for mount in mounts})
    if idle:
        raise UsageError(f"spec.volumes: {', '.join(idle)} is mounted nowhere; name it in spec.volumeMounts")
    text = ";".join(parts)
    read = parse_volumes(text)
    again = [(read.sources[mount.volume], mount.mount_path, mount.sub_path) for mount in read.mounts]
    _same(SHAPED["volume"], wanted, again, "names and paths cannot have ',' or ';' in them")
    return {"volume": text} if text else {}


def _name(named: Object, path: tuple[str, ...]) -> str:
    return checked(named.get("name"), str, (*path, "name"))


def _source(volume: Object) -> Claim | HostPath:
    path = SHAPED["volume"]
    claim, host = volume.get("persistentVolumeClaim"), volume.get("hostPath")
    if (claim is None) == (host is None):
        raise UsageError(
            f"spec.volumes: {volume.get('name')!r} must be either a persistentVolumeClaim or a hostPath"
        )
    if claim is not None:
        return Claim(checked(look(volume, ("persistentVolumeClaim", "claimName")), str, (*path, "claimName")))
    where = checked(look(volume, ("hostPath", "path")), str, (*path, "hostPath"))
    return HostPath(where, checked(look(volume, ("hostPath", "type")) or "", str, (*path, "type")))


def _volume_text(source: Claim | HostPath, place: str, below: str) -> str:
    if isinstance(source, Claim):
        words = {"claim_name": source.claim_name}
    else:
        words = {"host_path": source.path, "type": source.type}
    words |= {"mount_path": place, "sub_path": below}
    return ",".join(f"{key}={value}" for key, value in words.items() if value)


def _write_volumes(volumes: Volumes) -> list[Placed]:
    return [
        (SHAPED["volume"], [_volume(number, source) for number, source in enumerate(volumes.sources)]),
        (MOUNTS, [_mount(mount) for mount in volumes.mounts]),
    ]


def _volume(number: int, source: Claim | HostPath) -> Object:
    name = {"name": f"volume-{number}"}
    if isinstance(source, Claim):
        return {**name, "persistentVolumeClaim": {"claimName": source.claim_name}}
    return {**name, "hostPath": {"path": source.path, **({"type": source.type} if source.type else {})}}


def _mount(mount: Mount) -> Object:
    below = {"subPath": mount.sub_path} if mount.sub_path else {}
    return {"name": f"volume-{mount.volume}", "mountPath": mount.mount_path, **below}


# ----------------------------------------------------------------------------------- variables and templates


def _read_env(spec: Object) -> dict[str, Any]:
    path = SHAPED["envs"]
    variables = {
        _name(each, path): checked(each.get("value", ""), str, (*path, "value"))
        for each in objects(spec, path)
    }
    text = _joined(variables)
    cure = "a value cannot have ',NAME=' in it; templates.pods.env takes any"
    _same(path, variables, parse_envs(text), cure)
    return {"envs": text} if text else {}


def _read_templates(spec: Object) -> dict[str, Any]:
    path = SHAPED["cluster_spec_json"]
    given = look(spec, path)
    if not given:
        return {}
    pieces = {
        TEMPLATES[key][0]: value for key, value in checked(given, dict, path).items() if key in TEMPLATES
    }
    return {"cluster_spec_json": json.dumps(pieces)}


def _write_templates(text: str) -> Object:
    given: Object = json.loads(text) if text else {}
    written: Object = {}
    for ours, theirs in TEMPLATES.items():
        for name in theirs:
            if name in given:
                written[ours] = _merged(written.get(ours, {}), given[name])
    return written


def _merged(first: Object, second: Object) -> Object:
    """Two pieces for one kind of pod as one that changes pods as both do, one after the other."""
    merged: Object = {**first, **second}
    for key in ("labels", "annotations"):
        if key in first and key in second:
            merged[key] = {**second[key], **first[key]}
    if "tolerations" in first and "tolerations" in second:
        merged["tolerations"] = [*first["tolerations"], *second["tolerations"]]
    if "env" in first and "env" in second:
        taken = {variable["name"] for variable in first["env"]}
        merged["env"] = [*first["env"], *(each for each in second["env"] if each["name"] not in taken)]
    return merged
