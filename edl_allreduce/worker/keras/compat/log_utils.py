"""`elasticdl.python.common.log_utils`."""

from __future__ import annotations

import logging

default_logger = logging.getLogger("elasticdl")
