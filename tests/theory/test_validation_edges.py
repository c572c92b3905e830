import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dissensus.theory import MixingError, MixingMatrix, from_function, from_matrices

HALF = np.full((2, 2), 0.5)
ROW = MixingMatrix.of([[0.7, 0.3], [0.6, 0.4]], "row")
COLUMN = MixingMatrix.of([[0.7, 0.6], [0.3, 0.4]], "column")


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: from_matrices([ROW, COLUMN]), "round 0 is only row and round 1 only column stochastic; together they"),
        (lambda: from_function(lambda t: HALF, 0), "topology 'custom' needs at least one worker, got n=0"),
        (lambda: from_matrices(HALF)[1.5], "a step is a whole number, got 1.5"),  # pyright: ignore[reportArgumentType]
        (lambda: from_function(lambda t: HALF, 2)[True], "a step is a whole number, got True"),
    ],
)  # fmt: skip
def test_the_edges_are_refused_too(build: Callable[[], Any], words: str) -> None:
    with pytest.raises(MixingError, match=re.escape(words)):
        build()


def test_steps_may_be_numpy_integers() -> None:
    np.testing.assert_array_equal(from_matrices(HALF)[np.int64(3)].dense(), HALF)  # pyright: ignore[reportArgumentType]
