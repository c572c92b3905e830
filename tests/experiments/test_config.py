import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dissensus.experiments.config import Study, resolved
from dissensus.experiments.difference import difference
from dissensus.experiments.dotted import flatten
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.loading import load, write
from dissensus.experiments.toml import write_toml

ARMS = {"dsgd": {"algorithm": "dsgd"}, "ac": {"algorithm": "dsgd-ac", "p": 2.0}}


def toml(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_later_files_and_overrides_win(tmp_path: Path) -> None:
    a = toml(tmp_path / "a.toml", '[train]\nsteps = 10\nworkers = 4\n[arms.x]\nalgorithm = "dsgd"\norder = "atc"\n')
    b = toml(tmp_path / "b.toml", "[train]\nsteps = 20\n[topology]\nname = 'torus'\nrows = 2\n")
    study = load([a, b], ["train.batch=3", "arms.x.order=cta", "--lr.peak=0.5", "seeds=[3, 1]"])
    assert (study.train.steps, study.train.workers, study.train.batch) == (20, 4, 3)
    assert study.arms["x"].parameters == {"order": "cta"}
    assert study.topology.parameters == {"rows": 2}
    assert (study.lr.peak, study.seeds) == (0.5, (3, 1))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["train.stesp=4"], r"command line: --train\.stesp: unknown key 'train\.stesp'; did you mean 'steps'\?"),
        (["trian.steps=4"], r"unknown key 'trian'; did you mean 'train'\?"),
        (["train.steps=0"], r"train\.steps: Input should be greater than or equal to 1, got 0"),
        (["lr.peak"], r"expected section\.key=value, got 'lr\.peak'"),
        (["lr.peak.value=1"], r"lr\.peak: Input should be a valid number"),
        (["name=a", "name.x=1"], r"command line: cannot set 'name\.x': 'name' is a value, not a section"),
        (["lr.warmup=1000"], r"lr\.warmup = 1000 must be shorter than train\.steps = 1000"),
        (["seeds=[1, 1]"], r"a seed is listed twice in \[1, 1\]"),
        (["decision.treatment=c"], r"decision\.treatment = 'c' is no arm; did you mean 'ac'\?|is no arm"),
        (["topology.name=rnig"], r"command line: --topology\.name: \[topology\] unknown topology 'rnig'.*'ring'"),
        (["topology.neighbors=2"], r"\[topology\] topology 'ring' has no parameter 'neighbors'"),
        (["optimizer.momentun=0.9"], r"optimizer 'sgd' has no parameter 'momentun'; did you mean 'momentum'\?"),
        (["optimizer.lr=0.9"], r"the learning rate is not a parameter of the optimizer: set lr\.peak"),
        (["optimizer.name=sdg"], r"unknown optimizer 'sdg'; did you mean 'sgd'\?"),
        (["model.name=mlq"], r"unknown model 'mlq'; did you mean 'mlp'\?"),
        (["model.widht=3"], r"model 'mlp' has no parameter 'widht'; did you mean 'width'\?"),
        (["data.name=digit"], r"unknown data set 'digit'; did you mean 'digits'\?"),
        (["arms.ac.algorithm=dgsd-ac"], r"--arms\.ac\.algorithm: \[arms\.ac\] unknown algorithm 'dgsd-ac'.*'dsgd-ac'"),
        (["arms.ac.q=1"], r"\[arms\.ac\] algorithm 'dsgd-ac' has no parameter 'q'"),
        (["arms.ac.changes.train.stps=3"], r"unknown key 'train\.stps'; did you mean 'steps'\?"),
    ],
)
def test_a_mistake_is_named_with_its_place_and_the_nearest_match(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load((), overrides, arms=ARMS)


def test_a_mistake_in_a_file_names_the_file(tmp_path: Path) -> None:
    path = toml(tmp_path / "ring.toml", '[train]\nstesp = 4\n[arms.x]\nalgorithm = "dsgd"\n')
    with pytest.raises(ConfigError, match=r"ring\.toml: unknown key 'train\.stesp'; did you mean 'steps'\?"):
        load(path)
    with pytest.raises(ConfigError, match=r"no configuration file .*rin\.toml'; did you mean 'ring\.toml'\?"):
        load(tmp_path / "rin.toml")
    with pytest.raises(ConfigError, match=r"broken\.toml: not TOML: "):
        load(toml(tmp_path / "broken.toml", "train = ["))


def test_a_study_needs_an_arm() -> None:
    with pytest.raises(ConfigError, match=r"'arms' is missing"):
        load()


def test_the_resolved_file_gives_the_same_study_back(tmp_path: Path) -> None:
    study = load((), ["seeds=[0, 7]", "model.width=12", "probes.samples=50"], arms=ARMS, decision={"treatment": "ac"})
    write(study, tmp_path / "study.toml")
    again = load(tmp_path / "study.toml")
    assert again == study
    assert again.digest == study.digest


def test_a_cell_carries_its_changes_and_nothing_of_other_arms() -> None:
    arms = {"a": {"algorithm": "dsgd"}, "b": {"algorithm": "dsgd", "changes": {"topology.name": "complete"}}}
    study = load(arms=arms, seeds=[4, 5])
    assert [(c.only[0], c.only[2], c.topology.name) for c in study.cells()] == [
        ("a", 4, "ring"),
        ("b", 4, "complete"),
        ("a", 5, "ring"),
        ("b", 5, "complete"),
    ]
    assert len({c.digest for c in study.cells()}) == 4
    with pytest.raises(ConfigError, match=r"no arm 'c' in study 'study'; known: a, b"):
        study.cell("c", 4)
    with pytest.raises(ConfigError, match=r"study 'study' is not one cell: 2 arms, 2 seeds"):
        _ = study.only


def test_changes_touch_single_keys_however_they_are_nested() -> None:
    study = load((), ["arms.dsgd.changes.train.batch=5", "train.workers=3"], arms=ARMS)
    assert (study.cell("dsgd", 0).train.batch, study.cell("dsgd", 0).train.workers) == (5, 3)
    assert study.cell("ac", 0).train.batch == 16


def test_the_difference_of_two_studies_is_their_differing_keys() -> None:
    a, b = load(arms=ARMS), load((), ["lr.peak=0.2", "model.width=8"], arms=ARMS)
    assert difference(a, b) == {"lr.peak": (0.1, 0.2), "model.width": (None, 8)}
    assert difference(a, a) == {}
    assert flatten({"a": {"b": 1, "c": {"d": 2}}, "e": 3}) == {"a.b": 1, "a.c.d": 2, "e": 3}


def test_unknown_keys_are_refused_by_the_model_itself() -> None:
    with pytest.raises(ValueError, match="Extra inputs are not permitted"):
        Study.model_validate({"arms": ARMS, "stesp": 1})


scalars = st.one_of(
    st.booleans(), st.integers(-(2**62), 2**62), st.floats(allow_nan=False), st.text(st.characters(codec="utf-8"))
)
trees = st.recursive(
    st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=8), scalars, max_size=4),
    lambda inner: st.dictionaries(
        st.text(max_size=5), st.one_of(scalars, inner, st.lists(scalars, max_size=3)), max_size=4
    ),
    max_leaves=12,
)


@given(trees)
def test_written_toml_reads_back(tree: dict) -> None:
    assert tomllib.loads(write_toml(tree)) == tree


def test_toml_refuses_what_it_has_no_value_for() -> None:
    with pytest.raises(TypeError, match=r"a\.b: TOML has no value for NoneType"):
        write_toml({"a": {"b": None}})


def test_resolved_has_no_nulls() -> None:
    assert None not in flatten(resolved(load(arms=ARMS))).values()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.workers=true", r"--train\.workers: train\.workers: .*valid integer, got True"),
        ("train.steps='40'", r"--train\.steps: train\.steps: .*valid integer, got '40'"),
        ("decision.level='0.05'", r"--decision\.level: decision\.level: .*valid number, got '0\.05'"),
        ("arms.ac.p=three", r"--arms\.ac\.p: \[arms\.ac\] .*parameter 'p': .*valid number, got 'three'"),
        ("trian.steps=5", r"command line: --trian\.steps: unknown key 'trian'; did you mean 'train'"),
    ],
)
def test_one_type_is_not_taken_for_another_and_the_command_line_is_named(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(overrides=[override], arms={"ac": {"algorithm": "dsgd-ac", "p": 2}})


def test_what_python_hands_over_is_taken() -> None:
    import numpy as np

    study = load(arms={"ac": {"algorithm": "dsgd-ac", "p": 2}}, seeds=(0, 1), lr={"peak": np.float64(0.5)})
    again = load(arms=study.arms, train=study.train, lr={"peak": 1})
    assert (study.lr.peak, again.lr.peak, again.train) == (0.5, 1.0, study.train)


def test_a_wrong_change_of_an_arm_has_the_place_of_that_arm() -> None:
    with pytest.raises(ConfigError, match=r"\[arms\.ac\.changes\] topology\.name: unknown topology 'rng'"):
        load(arms={"ac": {"algorithm": "dsgd-ac", "changes": {"topology.name": "rng"}}})
