"""`make pin-images`: the Dockerfiles name their base images by what a registry has today."""

from __future__ import annotations

import hashlib
import json
import re
import runpy
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.docs.blocks import ROOT

MANIFEST = json.dumps({"schemaVersion": 2, "manifests": []}).encode()
DIGEST = f"sha256:{hashlib.sha256(MANIFEST).hexdigest()}"


class Registry(BaseHTTPRequestHandler):
    """As the large public one answers: a token for anybody, from where it says, and no image without it."""

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""

    def do_HEAD(self) -> None:
        known = self.path == "/v2/library/python/manifests/3.11-slim"
        if self.headers.get("Authorization") != "Bearer for-anybody":
            host = f"127.0.0.1:{self.server.server_address[1]}"
            realm = f'Bearer realm="http://{host}/token",service="images",scope="repository:python:pull"'
            self._answer(401, {"WWW-Authenticate": realm})
        elif "image.index.v1+json" not in self.headers["Accept"] or not known:
            self._answer(404, {})
        else:
            self._answer(200, {"Docker-Content-Digest": DIGEST})

    def do_GET(self) -> None:
        assert self.path == "/token?service=images&scope=repository%3Apython%3Apull"
        body = json.dumps({"token": "for-anybody"}).encode()
        self._answer(200, {"Content-Length": str(len(body))})
        self.wfile.write(body)

    def _answer(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


@pytest.fixture
def registry():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def pin(directory) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(ROOT / "docker" / "pin"), "--directory", str(directory)]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def test_bases_of_others_get_the_digest_of_their_tag_and_ours_do_not(registry, tmp_path):
    base = f"{registry}/library/python:3.11-slim"
    ours = "ARG BASE_IMAGE=elasticdl/elasticdl:dev\nFROM ${BASE_IMAGE}\n"
    (tmp_path / "Dockerfile").write_text(f"ARG BASE_IMAGE={base}\nFROM ${{BASE_IMAGE}}\n")
    (tmp_path / "Dockerfile.gpu").write_text(f"ARG RUNTIME_IMAGE={base}@sha256:{'0' * 64}\nFROM x\n")
    (tmp_path / "Dockerfile.data").write_text(ours)
    done = pin(tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{base}@{DIGEST}\n"), done.stderr
    assert (tmp_path / "Dockerfile").read_text().startswith(f"ARG BASE_IMAGE={base}@{DIGEST}\n")
    assert (tmp_path / "Dockerfile.gpu").read_text() == f"ARG RUNTIME_IMAGE={base}@{DIGEST}\nFROM x\n"
    assert (tmp_path / "Dockerfile.data").read_text() == ours


def test_a_tag_that_is_not_there_changes_nothing(registry, tmp_path):
    text = f"ARG BASE_IMAGE={registry}/library/python:3.11-slim\nARG RUNTIME_IMAGE={registry}/other:1\n"
    (tmp_path / "Dockerfile").write_text(text)
    done = pin(tmp_path)
    assert done.returncode == 1 and "Nothing was changed" in done.stderr and "404" in done.stderr
    assert (tmp_path / "Dockerfile").read_text() == text


def test_every_base_of_the_project_is_found():
    found = runpy.run_path(str(ROOT / "docker" / "pin"), run_name="docker_pin")["BASE"]
    for file in (ROOT / "docker").glob("Dockerfile*"):
        text = file.read_text()
        assert len(found.findall(text)) == len(re.findall(r"^ARG \w*IMAGE\b", text, re.MULTILINE)) > 0, file
