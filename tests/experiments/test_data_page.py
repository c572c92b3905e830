"""The page about data and models lists every name with its parameters, and none that does not exist."""

import re
from pathlib import Path

import pytest

from dissensus.experiments.data import AUGMENTATIONS, DATASETS, PARTITIONS
from dissensus.experiments.models import MODELS
from dissensus.experiments.registry import Registry

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("head", "registry"),
    [
        ("data.name", DATASETS),
        ("data.partition", PARTITIONS),
        ("data.augment", AUGMENTATIONS),
        ("model.name", MODELS),
    ],
)
def test_the_page_lists_what_there_is(head: str, registry: Registry) -> None:
    [table] = re.findall(rf"^\| `{re.escape(head)}` \|.*?\n\n", PAGE + "\n", re.M | re.S)
    listed: dict[str, set[str]] = {}
    for row in table.strip().splitlines()[2:]:
        names, _, parameters = (cell.strip() for cell in row.strip("|").split("|"))
        for name in re.findall(r"`([^`]+)`", names):
            listed[name] = set(re.findall(r"`([^`]+)`", parameters))
    assert set(listed) == set(registry.names())
    shared = {"cifar-10": {"labels"}, "flip": {"padding"}}  # a row for several names lists what any of them has
    for name, parameters in listed.items():
        assert parameters - shared.get(name, set()) == set(registry.parameters(name)), name
