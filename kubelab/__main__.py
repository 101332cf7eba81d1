"""python -m kubelab"""

import sys

from kubelab.cli import main

if __name__ == "__main__":
    sys.exit(main())
