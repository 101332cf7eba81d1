"""Certificates and kubeconfigs of a cluster. Elliptic keys: made in milliseconds."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

from kubelab.commands import run

_DAYS = "365"
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def authority(directory: Path) -> None:
    """Make the cluster's certificate authority and the key that signs service-account tokens."""
    directory.mkdir(parents=True, exist_ok=True)
    run(
        *("openssl", "req", "-x509", *_NEW_KEY, "-subj", "/CN=kubelab-ca", "-days", _DAYS),
        *("-addext", "keyUsage=critical,keyCertSign,digitalSignature"),
        *("-keyout", directory / "ca.key", "-out", directory / "ca.crt"),
    )
    key = directory / "sa.key"
    run("openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", key)
    run("openssl", "pkey", "-in", key, "-pubout", "-out", directory / "sa.pub")


def certificate(directory: Path, name: str, subject: str, alternatives: list[str]) -> None:
    """Make NAME.key and NAME.crt, signed by the authority, for servers and clients alike."""
    run(
        *("openssl", "req", "-x509", *_NEW_KEY, "-subj", subject, "-days", _DAYS),
        *("-CA", directory / "ca.crt", "-CAkey", directory / "ca.key"),
        *("-addext", "subjectAltName=" + ",".join(alternatives)),
        *("-addext", "basicConstraints=critical,CA:FALSE"),
        *("-addext", "extendedKeyUsage=serverAuth,clientAuth"),
        *("-keyout", directory / f"{name}.key", "-out", directory / f"{name}.crt"),
    )


def admin_token(directory: Path) -> str:
    """Make a token of the group system:masters and the file by which the API server knows it.

    People and tests use a token instead of a certificate, because a token passes through a proxy.
    """
    token = secrets.token_urlsafe(24)
    file = directory / "tokens.csv"
    file.touch(mode=0o600)
    file.write_text(f'{token},admin,admin,"system:masters"\n')
    return token


def kubeconfig(file: Path, server: str, authority_file: Path, user: dict[str, str], name: str) -> None:
    """Write a kubeconfig (JSON is YAML) for one server and one user."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": name, "cluster": {"server": server, "certificate-authority": str(authority_file)}}
        ],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
    file.touch(mode=0o600)
    file.write_text(json.dumps(content, indent=1))
