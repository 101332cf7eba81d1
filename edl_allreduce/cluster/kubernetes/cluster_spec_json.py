"""The user's own adaptation of manifests: the pieces of --cluster_spec_json."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from edl_allreduce.cluster.kubernetes.names import Object, Replica
from edl_allreduce.spec import JobSpec
from edl_allreduce.spec.adaptation import Piece


def adapted(pod: Object, spec: JobSpec, replica: Replica) -> Object:
    """The pod as --cluster_spec_json wants it: what holds for all pods, then for this kind."""
    kind = replica.value
    return with_pieces(pod, spec.typed.adaptation.of("pod_spec", f"{kind}_pod_spec", f"{kind}_spec"))


def with_pieces(manifest: Object, pieces: Iterable[Piece]) -> Object:
    """The manifest with each of them in turn."""
    for piece in pieces:
        manifest = _with_piece(manifest, piece)
    return manifest


def _with_piece(manifest: Object, piece: Piece) -> Object:
    """What the job itself needs is not overwritten."""
    metadata, spec = dict(manifest["metadata"]), dict(manifest["spec"])
    for key, more in (("labels", piece.labels), ("annotations", piece.annotations)):
        if more:
            metadata[key] = {**more, **metadata.get(key, {})}
    if piece.affinity is not None:
        spec["affinity"] = dict(piece.affinity)
    if piece.tolerations:
        spec["tolerations"] = [*spec.get("tolerations", []), *piece.tolerations]
    if piece.env and "containers" in spec:
        spec["containers"] = [_with_env(container, piece.env) for container in spec["containers"]]
    return {**manifest, "metadata": metadata, "spec": spec}


def _with_env(container: Object, variables: Sequence[Mapping[str, Any]]) -> Object:
    taken = {variable["name"] for variable in container["env"]}
    extra = [variable for variable in variables if variable["name"] not in taken]
    return {**container, "env": [*container["env"], *extra]}
