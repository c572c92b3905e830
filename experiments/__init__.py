"""What people run: data, configuration, runner, statistics, figures, reports, and the command line."""

if __name__ != "dissensus.experiments":
    raise ImportError(f"import dissensus.experiments, not {__name__}: the repository folder is not a top-level package")
