"""`python -m tarry.reproduce`: the command `tarry reproduce` without progress bars, for torch and numpy only."""

import sys

from .command import main

if __name__ == "__main__":
    sys.exit(main())
