"""Checks a built distribution: the wheel holds every module of the tree, and nothing lands beside `dissensus`.

Run as `python tests/repository/check_wheel.py dist`; also installs the wheel into a new environment and imports it.
"""

import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("theory", "algorithms", "probes", "experiments", "testing")


def main(dist: Path) -> None:
    """Raises with the first thing that is wrong."""
    wheel, sdist = next(dist.glob("*.whl")), next(dist.glob("*.tar.gz"))
    held = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    tree = {f"dissensus/{p.relative_to(ROOT)}" for room in ROOMS for p in (ROOT / room).rglob("*.py")}
    tree |= {f"dissensus/{p.name}" for p in (ROOT / "src/dissensus").glob("*.py")} | {"dissensus/py.typed"}
    assert tree <= held, f"missing from the wheel: {sorted(tree - held)}"
    assert all(n.startswith("dissensus/") for n in held), f"lands outside dissensus/: {sorted(held)}"
    assert wheel.name.endswith("-py3-none-any.whl"), f"not a pure wheel: {wheel.name}"
    with tarfile.open(sdist) as archive:
        inside = archive.getnames()
    assert any(n.endswith("src/dissensus/theory/mixing.py") for n in inside), "the sdist lost the rooms"
    with tempfile.TemporaryDirectory() as place:
        venv.create(f"{place}/env", with_pip=True)
        python = f"{place}/env/bin/python"
        run = lambda *a: subprocess.run(a, cwd=place, capture_output=True, text=True, timeout=300)  # noqa: E731
        assert run(python, "-m", "pip", "install", "-q", "--no-deps", str(wheel.resolve())).returncode == 0
        done = run(python, "-c", "import dissensus; print(dissensus.__version__)")
        assert done.returncode == 0, done.stderr
        assert run(f"{place}/env/bin/dissensus", "--help").returncode == 0
        for room in ROOMS:
            assert "No module named" in run(python, "-c", f"import {room}").stderr, f"import {room} works outside"
    sys.stdout.write(f"{wheel.name}: {len(held)} files, nothing beside dissensus/\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
