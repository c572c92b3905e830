"""Benchmarks: each measures its contenders in one run, interleaved, and reports ratios with their spread."""
