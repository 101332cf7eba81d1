"""PaddlePaddle EDL's README and its blog's two tests, typed from docs/kubernetes/edl.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kubelab import binaries
from tests.trainingjob.conftest import remove

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.findall(r"^```bash[^\n]*\n(.*?)^```", (ROOT / "docs/kubernetes/edl.md").read_text(), re.M | re.S)
ELSEWHERE = ("minikube ", "docker ", "kubectl logs ")
"""Programs that are not here, and a log, which a hollow node does not have."""


def test_every_command_that_can_be_typed_here_works(controlplane, tmp_path):
    (tmp_path / "kubectl").symlink_to(binaries.program("kubectl"))
    environment = {
        **os.environ, "JOBS": "2", "PAUSE": "0", "MOST": "4", "STEPS": "2 3",
        "KUBECONFIG": str(controlplane.kubeconfig),
        "PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}",
    }  # fmt: skip
    typed = [block for block in BLOCKS if not any(word in block for word in ELSEWHERE)]
    assert len(typed) == len(BLOCKS) - 2
    said = ""
    try:
        for block in typed:
            done = subprocess.run(
                ["bash", "-ec", block], cwd=ROOT, env=environment, capture_output=True, text=True,
                check=False, timeout=120,
            )  # fmt: skip
            assert done.returncode == 0, f"{block}\n{done.stderr}"
            said += done.stdout
    finally:
        remove(controlplane)
    assert "min-instance" in said, "the type explains itself"
    assert "trainingjob.elasticdl.org/example created" in said
    assert said.count("trainingjob.elasticdl.org/job-2 created") == 2, "both tests of the blog"
    assert "paddlecloud/example2" in said, "the plan has both jobs"
