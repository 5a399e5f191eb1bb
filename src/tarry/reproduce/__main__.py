"""`python -m tarry.reproduce` with torch and numpy alone; `tarry reproduce` is the same with bars."""

import sys

from .command import main

if __name__ == "__main__":
    sys.exit(main())
