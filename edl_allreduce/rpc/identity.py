"""Who the master is, from the job's token: its key and certificate follow from it.

Whoever has the token can make the certificate and so knows the master when it meets it; whoever has not
cannot be the master. Nothing has to be handed out beside the token, and the token itself is said to nobody
else. Jobs on Kubernetes have a certificate of their own in their Secret.
"""

from __future__ import annotations

import functools
import hmac
from dataclasses import dataclass
from datetime import UTC, datetime

TLS_NAME = "elasticdl-master"
"""The name in every job's certificate: whoever has its key is the master, wherever it is."""
SHORTEST_TOKEN = 16
"""Characters. What can be guessed could be tried out against the certificate, in private."""

_ORDER_OF_P256 = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_BEGIN, _END = datetime(2020, 1, 1, tzinfo=UTC), datetime(2120, 1, 1, tzinfo=UTC)
"""Both ends have to make the same certificate, and clocks differ."""


@dataclass(frozen=True)
class Tls:
    """A job's own certificate and its key, as PEM."""

    certificate: str
    private_key: str


@functools.cache
def tls_of(token: str) -> Tls:
    """The same at both ends, bit by bit: the key, the dates, the number and the signature follow from it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    digest = hmac.digest(token.encode(), b"edl master's key", "sha512")
    # 512 bits for 256, so that no key is likelier than another.
    key = ec.derive_private_key(1 + int.from_bytes(digest) % (_ORDER_OF_P256 - 1), ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, TLS_NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(_BEGIN)
        .not_valid_after(_END)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(TLS_NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256(), ecdsa_deterministic=True)
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Tls(certificate.public_bytes(pem).decode(), private.decode())
