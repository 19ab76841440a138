"""`python -m qim`: the command line."""

import sys

from qim.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
