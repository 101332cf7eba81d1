"""A job's own token and certificate."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta
from typing import Protocol

from edl_allreduce import clock
from edl_allreduce.cluster.kubernetes import names
from edl_allreduce.cluster.kubernetes.manifests import Credentials, owned, secret
from edl_allreduce.cluster.kubernetes.names import Object
from edl_allreduce.errors import ApiRefused, SetupError
from edl_allreduce.rpc.identity import TLS_NAME
from edl_allreduce.spec import JobSpec

YEARS = timedelta(days=10 * 365)
"""Longer than any job: a certificate that expires would end one that trains well."""
SKEW = timedelta(days=1)
"""Clocks of nodes differ."""
CONFLICT = 409
"""What the API server says of a name that is taken."""


class WritingApi(Protocol):
    """The part of the API that is needed here."""

    def create(self, path: str, manifest: Object, **query: str | int) -> Object: ...

    def patch(self, path: str, change: Object) -> Object: ...


def keep_in_secret(api: WritingApi, spec: JobSpec, credentials: Credentials, owner: Object) -> None:
    """For the workers of a master that was started without one, from a manifest by hand."""
    manifest = owned(secret(spec, credentials), owner)
    name = manifest["metadata"]["name"]
    try:
        api.create(names.path("secrets", spec.namespace), manifest)
    except ApiRefused as error:
        if error.status != CONFLICT:
            raise SetupError(
                f"the master cannot keep the job's token in a Secret {name}: {error} Its account needs the "
                f"rights of manifests/elasticdl-rbac.yaml (serviceAccountName: elasticdl)."
            ) from error
        # An earlier master's: its workers are gone, or were given the same.
        api.patch(names.path("secrets", spec.namespace, name), {"stringData": manifest["stringData"]})


def make_credentials() -> Credentials:
    """Random, for one job only: the certificate signs itself and nobody else's clients trust it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, TLS_NAME)])
    now = datetime.fromtimestamp(clock.wall(), UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + YEARS)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(TLS_NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Credentials(secrets.token_hex(32), certificate.public_bytes(pem).decode(), private.decode())
