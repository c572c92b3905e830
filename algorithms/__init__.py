"""The algorithms, each written once as a recursion on stacked workers, and the engines that run them."""

if __name__ != "dissensus.algorithms":
    raise ImportError(f"import dissensus.algorithms, not {__name__}: the repository folder is not a top-level package")
