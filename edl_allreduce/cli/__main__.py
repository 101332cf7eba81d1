"""`python -m edl_allreduce.cli` is `elasticdl`, for places where the script is not on the path."""

import sys

from edl_allreduce.cli.main import main

sys.exit(main())
