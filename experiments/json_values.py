"""Values as JSON has them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def plain(value: Any) -> Any:
    """Arrays become lists, numpy's numbers Python's, paths text, and what is not finite null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # arrays and tensors of any dimension
        return plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value
