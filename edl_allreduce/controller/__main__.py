"""`python -m edl_allreduce.controller`."""

import sys

from edl_allreduce.controller.process import main

if __name__ == "__main__":
    sys.exit(main())
