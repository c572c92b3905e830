"""What to expect of a cluster before training on it: its measured or stated figures, and what is fastest there."""
