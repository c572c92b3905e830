"""`python -m dissensus`: the command line."""

from dissensus.experiments.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
