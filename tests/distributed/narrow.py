"""Messages go over gloo in many short pieces, as large ones do on slow links."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from dissensus.algorithms.engines.distributed import pace, peers, road
from dissensus.algorithms.engines.distributed.same_host import VARIABLE


@contextmanager
def narrow(piece: int) -> Iterator[None]:
    """In this process a message is longer than one piece from so many bytes on, and two are under way at first."""
    sizes = {"PIECE_BYTES": piece, "AT_LEAST": 2 * piece, "AT_FIRST": 2 * piece, "LATE": 0.0}
    with (
        mock.patch.multiple(pace, **sizes),
        mock.patch.object(road, "PIECE_BYTES", piece),
        mock.patch.object(peers, "stalls", return_value=True),
        mock.patch.dict(os.environ, {VARIABLE: "gloo"}),
    ):
        yield
