"""A job's own token and certificate."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta

from edl_allreduce import clock
from edl_allreduce.cluster.kubernetes.manifests import Credentials
from edl_allreduce.rpc.server import TLS_NAME

YEARS = timedelta(days=10 * 365)
"""Longer than any job: a certificate that expires would end one that trains well."""
SKEW = timedelta(days=1)
"""Clocks of nodes differ."""


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
