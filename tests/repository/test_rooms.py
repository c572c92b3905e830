"""The house itself: links, import contract, doors, sizes, what `import dissensus` does not do."""

import ast
import importlib
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("theory", "algorithms", "probes", "experiments", "testing")
SOURCES = sorted(p for room in ROOMS for p in (ROOT / room).rglob("*.py"))
LONGEST = 400


def python(code: str, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=os.environ | env, cwd="/"
    )


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_is_linked_under_the_one_import_name(room: str) -> None:
    link = ROOT / "src" / "dissensus" / room
    assert link.is_symlink(), f"{link} must be a symbolic link to ../../{room}; this checkout lost it"
    assert link.resolve() == ROOT / room


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_refuses_a_second_identity(room: str) -> None:
    done = python(f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {room}")
    assert done.returncode != 0
    assert f"import dissensus.{room}, not {room}" in done.stderr


def test_the_import_contract_holds() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports")], capture_output=True, text=True, cwd=ROOT, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_importing_the_package_touches_nothing() -> None:
    code = """
import sys
events = []
def hook(event, args):
    if event.startswith(("socket.", "subprocess.")) or event in ("os.mkdir", "os.rename", "os.remove"):
        events.append((event, args))
    if event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+"):
        events.append((event, args))
sys.dont_write_bytecode = True
sys.addaudithook(hook)
import dissensus
dissensus.__version__
loaded = [m for m in ("torch", "numpy", "scipy", "matplotlib", "pydantic") if m in sys.modules]
assert not events, events
assert not loaded, loaded
"""
    done = python(code)
    assert done.returncode == 0, done.stderr


def test_theory_never_imports_torch() -> None:
    code = """
import pkgutil, importlib, sys, dissensus.theory
for m in pkgutil.walk_packages(dissensus.theory.__path__, "dissensus.theory."):
    importlib.import_module(m.name)
assert "torch" not in sys.modules
"""
    done = python(code)
    assert done.returncode == 0, done.stderr


def test_help_needs_no_heavy_import() -> None:
    code = """
import sys
from dissensus.experiments.cli import main
assert main(["--help"]) == 0
loaded = [m for m in ("torch", "numpy", "scipy", "matplotlib", "pydantic", "rich") if m in sys.modules]
assert not loaded, loaded
"""
    done = python(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("source", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_file_fits_one_sitting_and_says_what_it_is(source: Path) -> None:
    text = source.read_text()
    assert ast.get_docstring(ast.parse(text)), f"{source} has no module docstring"
    lines = len(text.splitlines())
    excused = str(source.relative_to(ROOT)) in (ROOT / "VIOLATIONS.md").read_text()
    assert lines <= LONGEST or excused, f"{source} has {lines} lines, over {LONGEST}, and no entry in VIOLATIONS.md"


def test_violations_speak_of_files_that_exist() -> None:
    for path in re.findall(r"`([\w/]+\.py)`", (ROOT / "VIOLATIONS.md").read_text()):
        assert (ROOT / path).exists(), f"VIOLATIONS.md excuses {path}, which is not there"


def modules() -> list[str]:
    import dissensus

    return [m.name for m in pkgutil.walk_packages(dissensus.__path__, "dissensus.") if "__main__" not in m.name]


@pytest.mark.parametrize("module", modules())
def test_every_public_name_is_documented(module: str) -> None:
    loaded = importlib.import_module(module)
    names = getattr(loaded, "__all__", [n for n in vars(loaded) if not n.startswith("_")])
    for name in names:
        thing = getattr(loaded, name)
        if (callable(thing) or isinstance(thing, type)) and getattr(thing, "__module__", "") == module:
            assert (getattr(thing, "__doc__", None) or "").strip(), f"{module}.{name} has no docstring"


@pytest.mark.parametrize("room", ROOMS)
def test_every_name_a_door_offers_is_there(room: str) -> None:
    door = importlib.import_module(f"dissensus.{room}")
    offered = getattr(door, "__all__", [])
    assert all(getattr(door, name) is not None for name in offered)
    kinds = {name: 0 if name.isupper() else 1 if name[0].isupper() else 2 for name in offered}
    assert offered == sorted(offered, key=lambda name: (kinds[name], name)), f"dissensus.{room}.__all__ is not in order"


def test_every_topology_file_registers_something() -> None:
    from dissensus.theory import catalogue
    from dissensus.theory.topologies import SHARED

    folder = ROOT / "theory" / "topologies"
    homes = {e.build.__module__.rsplit(".", 1)[-1] for e in catalogue().values()}
    files = {p.stem for p in folder.glob("*.py") if p.stem != "__init__" and not p.stem.startswith("_")}
    strange = files - homes - set(SHARED)
    assert not strange, f"these files of {folder.name}/ register no topology and are not listed: {sorted(strange)}"
    assert set(SHARED) <= files - homes


def test_nothing_in_the_tree_names_this_machine() -> None:
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, cwd=ROOT, timeout=60).stdout.split(
        "\n"
    )
    here = re.compile("/" + r"(root|home)/\w|/work" + "/(main|shared)")
    for name in filter(None, listed):
        path = ROOT / name
        if path.is_file() and not path.is_symlink() and path.suffix in (".py", ".md", ".toml", ".yml", ".cff", ""):
            assert not here.search(path.read_text(errors="ignore")), f"{name} holds a path of one machine"
