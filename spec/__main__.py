"""Command line: `python -m spec explore|walk|streams|check`."""

from .cli import main

if __name__ == "__main__":
    raise SystemExit(main())
