"""`python -m tarry` is the command `tarry`."""

from .cli.app import main

if __name__ == "__main__":
    main()
