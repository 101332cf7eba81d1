"""`python -m experiments NAME`."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from edl_allreduce import outside
from edl_allreduce.errors import EdlError
from experiments import __doc__ as about
from experiments import jobs, nginx, trace

ALL = {"jobs": jobs, "nginx": nginx, "trace": trace}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    chosen = parser.add_subparsers(dest="name", required=True)
    for name, module in ALL.items():
        own = chosen.add_parser(name, description=module.__doc__)
        own.add_argument(
            "--out", type=Path, default=Path("build/experiments"), help="where files are written"
        )
        module.add_flags(own)
    flags = parser.parse_args(argv)
    flags.out.mkdir(parents=True, exist_ok=True)
    # Clusters and processes are taken down on the way out.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        ALL[flags.name].run(flags)
    except KeyboardInterrupt:
        kept = f"{flags.out} has what was done, --resume does the rest"
        print(f"experiments: interrupted; {kept}", file=sys.stderr)
        return 128 + signal.SIGINT
    except EdlError as error:
        print(f"experiments: {outside.story(error)}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
