"""Instruments for curvature and disagreement: pure functions that leave no trace on what they look at."""

if __name__ != "dissensus.probes":
    raise ImportError(f"import dissensus.probes, not {__name__}: the repository folder is not a top-level package")
