"""`elasticdl version`."""

from __future__ import annotations

from collections.abc import Sequence

from edl_allreduce.spec.words import Parser
from edl_allreduce.version import __version__


def main(argv: Sequence[str]) -> int:
    """Print the version of this package; `elasticdl doctor` knows those of the others."""
    Parser(
        "elasticdl version", "", "Print the version. `elasticdl doctor` shows those of the libraries."
    ).read(argv)
    print(__version__)
    return 0
