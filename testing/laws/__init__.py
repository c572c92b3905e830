"""The laws of algorithms and engines, one idea a file: what is run, how it is judged, and the laws themselves."""
