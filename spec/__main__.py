"""Command line: `python -m spec explore|walk`."""

from .cli import main

if __name__ == "__main__":
    raise SystemExit(main())
