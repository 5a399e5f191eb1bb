from __future__ import annotations

import pickle
import warnings

import pytest

import tarry
from tarry.core.errors import as_keywords, errors_as_keywords

PROBLEMS = {
    "--lr -1: must be above 0": "lr=-1: must be above 0",
    "--epoks: no such setting; did you mean 'epochs'?": "epoks: no such setting; did you mean 'epochs'?",
    "--method orthofk: there is no such method. Did you mean 'orthofl'?": (
        "method='orthofk': there is no such method. Did you mean 'orthofl'?"
    ),
    "--out /a b/c: it holds another run; `tarry resume /a b/c` goes on with it, or name another folder": (
        "out='/a b/c': it holds another run; tarry.resume('/a b/c') goes on with it, or name another folder"
    ),
    "--method {'beta': 1}: a table needs a name": "method={'beta': 1}: a table needs a name",
    "--method ./my.py:factory: there is no file my.py": "method='./my.py:factory': there is no file my.py",
    "--device cuda --workers 2: worker processes train on the cpu only; use --executor batched, or auto": (
        "device='cuda', workers=2: worker processes train on the cpu only; use executor='batched', or auto"
    ),
    "--momentum 0.5: only --optimizer sgd has it": "momentum=0.5: only optimizer='sgd' has it",
    "--method.policy random --method.tiers 4: the paper gives it for 5 tiers; use --method.tiers 5": (
        "method.policy='random', method.tiers=4: the paper gives it for 5 tiers; use method.tiers=5"
    ),
    "--compile: steps are compiled together; add --executor batched": (
        "compile: steps are compiled together; add executor='batched'"
    ),
    "--address x: (refused); `ray start --head` begins one, and without --address we begin one": (
        "address='x': (refused); `ray start --head` begins one, and without address we begin one"
    ),
    '--task.model bert: needs the package peft; pip install "tarry[language]"': (
        "task.model='bert': needs the package peft; pip install \"tarry[language]\""
    ),
    "/a/r: --delay.path /a/d.csv is not what it was; start a new run with another --out": (
        "/a/r: delay.path='/a/d.csv' is not what it was; start a new run with another out"
    ),
    "a run needs a budget: --time, --updates, --rounds or --target": (
        "a run needs a budget: time, updates, rounds or target"
    ),
    "for a file elsewhere use --task npz --task.path FILE or --task jsonl --task.path FILE.": (
        "for a file elsewhere use task='npz', task.path=FILE or task='jsonl', task.path=FILE."
    ),
    "/a: there is no run here (no spec.toml)": "/a: there is no run here (no spec.toml)",
}
NOTICES = {
    "--target 0.9 was not reached: the best score was 0.4": "target=0.9 was not reached: the best score was 0.4",
    "--unlabeled noise changes nothing: fedavg uses no such inputs": (
        "unlabeled='noise' changes nothing: fedavg uses no such inputs"
    ),
    "labels: noise; --unlabeled chooses others": "labels: noise; unlabeled chooses others",
    "diverged: a smaller --lr may help": "diverged: a smaller lr may help",
    "moon is about clients' own models: --personalize EPOCHS scores them": (
        "moon is about clients' own models: personalize=EPOCHS scores them"
    ),
}


@pytest.mark.parametrize("flags", PROBLEMS)
def test_the_flags_of_a_problem_become_keyword_arguments(flags):
    assert as_keywords(flags) == PROBLEMS[flags]
    assert as_keywords(PROBLEMS[flags]) == PROBLEMS[flags]


@pytest.mark.parametrize("flags", NOTICES)
def test_the_flags_of_a_notice_become_keyword_arguments(flags):
    assert as_keywords(flags, is_notice=True) == NOTICES[flags]


def test_every_problem_is_rewritten_and_the_error_stays_the_same_object():
    error = tarry.BadInput(["--lr 0: must be above 0", "--method.a 1: no"])
    with pytest.raises(tarry.BadInput) as caught, errors_as_keywords("method."):
        raise error
    assert caught.value is error
    assert error.problems == ("lr=0: must be above 0", "a=1: no")
    assert str(error) == "lr=0: must be above 0\na=1: no"


def test_other_errors_are_rewritten_too():
    with pytest.raises(tarry.Diverged, match=r"^go on without strict$"), errors_as_keywords():
        raise tarry.Diverged("go on without --strict")


def test_bad_input_is_a_value_error_and_keeps_its_problems_between_processes():
    error = tarry.BadInput(["one", "two"])
    assert isinstance(error, ValueError)
    assert pickle.loads(pickle.dumps(error)).problems == ("one", "two")  # noqa: S301 - made here


def test_run_and_compare_name_keywords():
    with pytest.raises(tarry.BadInput) as caught:
        tarry.run("orthofl", "digits", lr=-1, epoks=3)
    assert caught.value.problems == ("lr=-1: must be above 0", "epoks: no such setting; did you mean 'epochs'?")
    with pytest.raises(tarry.BadInput, match=r"^lr=-1: must be above 0$"):
        tarry.compare(["orthofl", "fedavg"], "digits", lr=-1)


def test_notices_are_warnings_of_the_line_that_called():
    small = {"name": "digits", "limit": 60}
    settings = {"clients": 2, "epochs": 1, "delay": [1, 2], "updates": 2, "target": 0.999}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = tarry.run("fedasync", small, **settings)
        made = tarry.compare(["fedasync"], small, seeds=[0], **settings)
    assert [w.category for w in caught] == [tarry.TarryWarning] * 2
    assert {w.filename for w in caught} == {__file__}
    assert str(caught[0].message).startswith("target=0.999 was not reached: ")
    assert str(caught[1].message).startswith("fedasync: target=0.999 was not reached: ")
    (notice,) = result.warnings
    assert notice.startswith("--target 0.999 was not reached: ")
    assert made.results[0].warnings == result.warnings
