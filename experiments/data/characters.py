r"""Text as blocks of (context, next characters): from a Markov source whose best loss is known, or from a file.

Made: S dialects, each a Markov source of its own (see `markov`), every block a stationary text of one of them, in equal
numbers. With one dialect `facts["best_loss"]` is exactly the least expected loss that any predictor can reach on a
block. With S of them a predictor must also find out which it reads: the least loss lies between `best_loss`, the mean
over dialects, and `best_loss_at_most` = best_loss + log(S) / L, since the dialect is worth at most log S nats a block.

From a file (`path`): non-overlapping blocks of its characters, the last `test_share` of the text held out; the alphabet
is what occurs. The S "dialects" are then S equal stretches of the training text.

Dialects are the groups that partitioners tell apart, so `partition = "dirichlet"` gives every worker a language of its
own mixture.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from dissensus.algorithms.streams import numpy_stream
from dissensus.experiments.data.dataset import DATASETS, DataSet
from dissensus.experiments.data.markov import MarkovSource
from dissensus.experiments.data.task import Task
from dissensus.experiments.errors import ConfigError, DataMissingError

Count = Annotated[int, Field(ge=1)]


@DATASETS.register("characters")
def characters(
    context: Count = 32,
    alphabet: Annotated[int, Field(ge=2)] = 16,
    order: Annotated[int, Field(ge=1)] = 2,
    dialects: Count = 1,
    train: Count = 2048,
    test: Count = 256,
    concentration: Annotated[float, Field(gt=0.001)] = 0.2,
    floor: Annotated[float, Field(ge=1e-3, le=1)] = 0.01,
    *,
    path: str = "",
    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.1,
    seed: int = 0,
) -> DataSet:
    """Blocks of `context` characters, each with the character that follows it.

    Made, unless `path` names a text file: `train` and `test` blocks of `dialects` sources of this `order` over an
    `alphabet` of that many characters; `concentration` below 1 makes few continuations likely, `floor` is the share
    that all of them get. `seed` makes another language; it is not the seed of the run.
    """
    if path:
        return _from_file(Path(path).expanduser(), context, dialects, test_share)
    sources = [
        MarkovSource.drawn(numpy_stream(seed, "characters", "source", s), alphabet, order, concentration, floor)
        for s in range(dialects)
    ]
    made = [_blocks(sources, part, count, context, seed) for part, count in (("train", train), ("test", test))]
    (text, origin), (held_out, _) = made
    best = float(np.mean([source.least_loss(context) for source in sources]))
    facts = {
        "best_loss": best,
        "best_loss_at_most": best + float(np.log(dialects)) / context,
        "entropy_rate": float(np.mean([source.entropy_rate for source in sources])),
    }
    return _data(text, held_out, alphabet, origin, facts)


def _blocks(
    sources: list[MarkovSource], part: str, count: int, context: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """So many blocks of all dialects in turn, and which dialect each is of."""
    origin = np.arange(count) % len(sources)
    text = np.empty((count, context + 1), dtype=np.int64)
    for s, source in enumerate(sources):
        mine = origin == s
        text[mine] = source.text(numpy_stream(seed, "characters", part, s), int(mine.sum()), context + 1)
    return text, origin


def _from_file(path: Path, context: int, stretches: int, test_share: float) -> DataSet:
    try:
        written = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"data set 'characters': {path} is no UTF-8 text: {error.reason} at {error.start}") from None
    except OSError as error:
        raise DataMissingError(f"data set 'characters': cannot read {path}: {error.strerror}") from None
    letters, codes = np.unique(np.array(list(written), dtype="U1"), return_inverse=True)
    cut = len(codes) - round(test_share * len(codes))
    parts = [_cut(codes[:cut], context), _cut(codes[cut:], context)]
    if min(map(len, parts)) == 0 or len(parts[0]) < stretches:
        raise ConfigError(
            f"data set 'characters': {path} has {len(codes)} characters, too few for {max(1, stretches)} training "
            f"blocks and a test block of context = {context}: set a smaller data.context or a longer text"
        )
    if len(letters) < 2:
        raise ConfigError(f"data set 'characters': {path} repeats one character: there is nothing to learn")
    origin = np.arange(len(parts[0])) * stretches // len(parts[0])
    return _data(parts[0], parts[1], len(letters), origin, {})


def _cut(codes: np.ndarray, context: int) -> np.ndarray:
    """Blocks of context + 1 characters whose contexts do not overlap."""
    count = max(0, (len(codes) - 1) // context)
    return codes[np.arange(count)[:, None] * context + np.arange(context + 1)].astype(np.int64)


def _data(text: np.ndarray, held_out: np.ndarray, letters: int, origin: np.ndarray, facts: dict[str, float]) -> DataSet:
    halves = (text[:, :-1], text[:, 1:], held_out[:, :-1], held_out[:, 1:])
    parts = [torch.from_numpy(np.ascontiguousarray(half)) for half in halves]
    groups = torch.from_numpy(np.ascontiguousarray(origin))
    return DataSet("characters", *parts, classes=letters, task=Task(tokens=True), groups=groups, facts=facts)
