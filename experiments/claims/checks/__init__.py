"""The checks, one file a claim."""
