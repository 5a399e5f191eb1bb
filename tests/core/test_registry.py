from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import pytest

from tarry.core import registry as registry_module
from tarry.core.errors import BadInput, near
from tarry.core.registry import Registry
from tests.helpers.by_flags import build_by_flags

Made = dict[str, Any]


@pytest.fixture
def gadgets(monkeypatch) -> Registry[Made]:
    monkeypatch.setattr(registry_module, "entry_points", lambda group: [])
    r: Registry[Made] = Registry("gadget")

    @r.register("full", paper="Somebody 2020")
    def full(
        *,
        needed: Annotated[int, "how many"],
        rate: Annotated[float, "how fast"] = 0.5,
        cap: Annotated[float | None, "at most"] = None,
        mode: Annotated[Literal["slow", "fast", 3], "how"] = "slow",
        on: Annotated[bool, "whether"] = False,
        size: int | Literal["all"] = "all",
        word: str = "",
    ) -> Made:
        """Everything a gadget may take.

        More about it.
        """
        return {"needed": needed, "rate": rate, "cap": cap, "mode": mode, "on": on, "size": size, "word": word}

    @r.register("bare")
    def bare() -> Made:
        """Takes nothing."""
        return {}

    return r


def test_an_entry_says_what_the_signature_and_the_docstring_say(gadgets):
    entry = gadgets["full"]
    assert (entry.name, entry.paper, entry.summary) == ("full", "Somebody 2020", "Everything a gadget may take.")
    assert entry.doc == "Everything a gadget may take.\n\nMore about it."
    assert [(p.name, p.type_name, p.help, p.required) for p in entry.params] == [
        ("needed", "int", "how many", True),
        ("rate", "float", "how fast", False),
        ("cap", "float | none", "at most", False),
        ("mode", "slow | fast | 3", "how", False),
        ("on", "bool", "whether", False),
        ("size", "int | all", "", False),
        ("word", "str", "", False),
    ]
    assert {p.name: p.default for p in entry.params if not p.required} == {
        "rate": 0.5,
        "cap": None,
        "mode": "slow",
        "on": False,
        "size": "all",
        "word": "",
    }
    assert list(gadgets) == ["bare", "full"]


def test_parameters_arrive_as_their_types_from_text_and_from_values(gadgets):
    text = {"needed": "7", "rate": "1e-3", "cap": "2", "mode": "FAST", "on": "yes", "size": "12", "word": "x"}
    values = {"needed": 7, "rate": 1e-3, "cap": 2, "mode": "fast", "on": True, "size": 12, "word": "x"}
    assert gadgets.build("full", **text) == gadgets.build("full", **values)
    made = gadgets.build("full", **text)
    assert made == {"needed": 7, "rate": 0.001, "cap": 2.0, "mode": "fast", "on": True, "size": 12, "word": "x"}
    assert [type(made[k]) for k in ("needed", "rate", "cap", "on")] == [int, float, float, bool]


def test_a_factory_called_with_nothing_gets_its_defaults(gadgets):
    assert gadgets.build("bare") == gadgets.build("bare") == {}
    assert gadgets.build("full", needed=1)["rate"] == 0.5


def test_every_wrong_parameter_is_named_in_one_error(gadgets):
    with pytest.raises(BadInput) as e:
        build_by_flags(gadgets, "full", rat=1, mode="slwo", on="perhaps")
    assert e.value.problems == (
        "--gadget.rat 1: gadget 'full' has no parameter 'rat'. Did you mean 'rate'?",
        "--gadget.mode slwo: wants slow | fast | 3, got 'slwo'",
        "--gadget.on perhaps: wants bool, got 'perhaps'",
        "--gadget.needed: gadget 'full' needs it (how many)",
    )


def test_a_factory_without_parameters_says_so(gadgets):
    with pytest.raises(BadInput, match=r"--gadget.x 1: gadget 'bare' has no parameter 'x'. 'bare' takes no parameters"):
        build_by_flags(gadgets, "bare", x=1)


def test_an_unknown_name_gets_a_near_one_or_the_list(gadgets):
    with pytest.raises(BadInput, match=r"--gadget fulll: there is no such gadget. Did you mean 'full'\?"):
        gadgets.find("fulll")
    with pytest.raises(BadInput, match=r"--gadget zzz: there is no such gadget. Known: bare, full."):
        build_by_flags(gadgets, "zzz")


def test_near_names():
    assert near("orthofk", ["fedavg", "orthofl"]) == " Did you mean 'orthofl'?"
    assert near("CIFAR-10", ["cifar10", "mnist"]) == " Did you mean 'cifar10'?"
    assert near("fedgia", ["FedGiA"]) == " Did you mean 'FedGiA'?"
    assert near("q", ["b", "a"]) == " Known: a, b."
    assert near("q", []) == ""


def test_a_registry_is_a_mapping_from_names_to_entries(gadgets):
    assert isinstance(gadgets, Mapping)
    assert (len(gadgets), list(gadgets), "full" in gadgets, "fulll" in gadgets) == (2, ["bare", "full"], True, False)
    assert [e.name for e in gadgets.values()] == list(gadgets.keys()) == ["bare", "full"]
    assert gadgets.get("fulll") is None
    assert gadgets.get("bare") is gadgets["bare"]
    with pytest.raises(KeyError) as e:
        gadgets["fulll"]
    assert str(e.value) == "gadget='fulll': there is no such gadget. Did you mean 'full'?"


def test_an_entry_is_called_with_parameters(gadgets):
    entry = gadgets["full"]
    assert entry(needed="7", cap=2) == gadgets.build("full", needed=7, cap=2.0)
    with pytest.raises(BadInput, match=r"^needed: gadget 'full' needs it \(how many\)$"):
        entry()


def test_a_factory_must_return_the_type_of_its_registry(gadgets):
    strict: Registry[Any] = Registry("gizmo", makes=list)
    strict.register("wrong")(gadgets["bare"].factory)
    with pytest.raises(BadInput, match="gizmo='wrong': its factory returned dict, not list"):
        strict.build("wrong")


def test_the_search_finds_all_words_in_name_description_and_paper(gadgets):
    assert [e.name for e in gadgets.search("gadget MAY")] == ["full"]
    assert [e.name for e in gadgets.search("somebody 2020")] == ["full"]
    assert [e.name for e in gadgets.search("take")] == ["bare", "full"]
    assert gadgets.search("take flight") == []


def test_registries_and_entries_are_one_short_line(gadgets):
    assert repr(gadgets) == "gadgets: bare, full (2)"
    assert repr(gadgets["bare"]) == "gadget bare(): Takes nothing."
    assert repr(gadgets["full"]) == (
        "gadget full(needed, rate, cap, mode, on, size, word): Everything a gadget may take."
    )
    for i in range(30):
        gadgets.register(f"name{i:02}")(gadgets["bare"].factory)
    assert re.fullmatch(r"gadgets: bare, full, name00, .*, \.\.\. \(32\)", repr(gadgets))
    assert len(repr(gadgets)) <= 100


def test_the_notebook_view_of_an_entry_is_an_escaped_table(gadgets):
    @gadgets.register("odd", paper="A & B")
    def odd(*, limit: Annotated[float, "kept if x < limit"] = 0.5) -> Made:
        """Keeps <x>."""
        return {}

    view = gadgets["odd"]._repr_html_()
    assert "<b>odd</b>: Keeps &lt;x&gt;." in view
    assert "<p>A &amp; B</p>" in view
    assert "<tr><td>limit</td><td>float</td><td>0.5</td><td>kept if x &lt; limit</td></tr>" in view
    assert "<table>" not in gadgets["bare"]._repr_html_()
    assert "<td>needed</td><td>int</td><td></td>" in gadgets["full"]._repr_html_()


def without_words() -> Made:
    return {}


def test_a_name_is_registered_once_and_with_a_docstring(gadgets):
    with pytest.raises(AssertionError, match="twice"):
        gadgets.register("bare")(without_words)
    with pytest.raises(AssertionError, match="docstring"):
        gadgets.register("new")(without_words)


def test_building_checks_before_it_calls(gadgets):
    called = []

    @gadgets.register("loud")
    def loud(*, n: int = 1) -> Made:
        """Tells when it is called."""
        called.append(n)
        return {}

    with pytest.raises(BadInput):
        build_by_flags(gadgets, "loud", n="x")
    assert called == []
    assert gadgets["loud"].check({"n": "3"}) == {"n": 3}
    assert called == []
    gadgets.build("loud", n="3")
    assert called == [3]


def written(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return str(path)


GOOD = '''
from __future__ import annotations
from dataclasses import dataclass
from typing import Annotated

@dataclass(frozen=True)
class Thing:
    beta: float

def mine(*, beta: Annotated[float, "how much"] = 0.5) -> Thing:
    """My own.

    In one file.
    """
    return Thing(beta)

mine.paper = "Me 2026"
'''


def test_a_factory_in_a_file_is_as_good_as_a_registered_one(gadgets, tmp_path):
    path = written(tmp_path, "own.py", GOOD)
    entry = gadgets[f"{path}:mine"]
    assert (entry.summary, entry.paper) == ("My own.", "Me 2026")
    assert [(p.name, p.type_name, p.default, p.help) for p in entry.params] == [("beta", "float", 0.5, "how much")]
    assert gadgets.build(f"{path}:mine", beta="0.25").beta == 0.25
    with pytest.raises(BadInput, match=r"--gadget.bet 1: .* Did you mean 'beta'"):
        build_by_flags(gadgets, f"{path}:mine", bet=1)
    assert "bare" in gadgets


def test_a_file_may_be_named_from_here_or_from_home(gadgets, tmp_path, monkeypatch):
    written(tmp_path, "own.py", GOOD)
    monkeypatch.chdir(tmp_path)
    assert gadgets.build("own.py:mine").beta == 0.5
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir("/")
    assert gadgets.build("~/own.py:mine").beta == 0.5


def test_what_is_wrong_with_a_file_is_said(gadgets, tmp_path):
    with pytest.raises(BadInput, match=r"--gadget .*none.py:f: there is no file .*none.py"):
        gadgets.find(f"{tmp_path}/none.py:f")
    with pytest.raises(BadInput, match=r"bad.py does not import: SyntaxError"):
        gadgets.find(written(tmp_path, "bad.py", "def f(:\n") + ":f")
    with pytest.raises(BadInput, match=r"boom.py does not import: ZeroDivisionError: division by zero"):
        gadgets.find(written(tmp_path, "boom.py", "1 / 0\n") + ":f")
    with pytest.raises(BadInput, match=r"asks.py does not import: ModuleNotFoundError: .*nobody_has_this"):
        gadgets.find(written(tmp_path, "asks.py", "import nobody_has_this\n") + ":f")
    path = written(tmp_path, "own.py", GOOD)
    with pytest.raises(BadInput, match=r"own.py has no factory 'mime'. Did you mean 'mine'\?"):
        gadgets.find(f"{path}:mime")
    with pytest.raises(BadInput, match=r"own.py has no factory 'annotations2'"):
        gadgets.find(f"{path}:annotations2")
    with pytest.raises(BadInput, match=r"own.py has no factory '__doc__'"):
        gadgets.find(f"{path}:__doc__")


def test_a_file_whose_annotations_are_imported_for_type_checkers_only_builds_all_the_same(gadgets, tmp_path):
    path = written(
        tmp_path,
        "typed.py",
        '''
        from __future__ import annotations
        from typing import TYPE_CHECKING, Annotated

        if TYPE_CHECKING:
            from somewhere import Thing

        def mine(*, beta: Annotated[float, "how much"] = 0.5) -> Thing:
            """Mine."""
            return {"beta": beta}
        ''',
    )
    assert gadgets.build(f"{path}:mine", beta="0.25") == {"beta": 0.25}


def test_a_parameter_without_a_type_is_of_its_defaults(gadgets, tmp_path):
    path = written(
        tmp_path,
        "untyped.py",
        """
        def mine(*, share=0.5, buffer=3, on=False, word="x", needed, none=None):
            return dict(share=share, buffer=buffer, on=on, word=word, needed=needed, none=none)
        """,
    )
    text = {"share": "0.25", "buffer": "7", "on": "yes", "word": "7"}
    made = gadgets.build(f"{path}:mine", **text, needed=1, none=[2])
    assert made == {"share": 0.25, "buffer": 7, "on": True, "word": "7", "needed": 1, "none": [2]}
    assert [type(made[k]) for k in ("share", "buffer", "on")] == [float, int, bool]
    assert gadgets.build(f"{path}:mine", buffer="0.5", needed=1)["buffer"] == 0.5
    with pytest.raises(BadInput) as e:
        build_by_flags(gadgets, f"{path}:mine", share="much", needed="1", none="0.5")
    assert e.value.problems == (
        "--gadget.share much: wants float, got 'much'",
        "--gadget.needed 1: its factory does not say what it is; write a type there, as in `needed: float`",
        "--gadget.none 0.5: its factory does not say what it is; write a type there, as in `none: float`",
    )


def test_two_files_of_one_name_in_two_folders_do_not_mix(gadgets, tmp_path):
    for folder, value in (("a", 1.0), ("b", 2.0)):
        (tmp_path / folder).mkdir()
        written(tmp_path / folder, "own.py", GOOD.replace("= 0.5", f"= {value}"))
    assert gadgets.build(f"{tmp_path}/a/own.py:mine").beta == 1.0
    assert gadgets.build(f"{tmp_path}/b/own.py:mine").beta == 2.0
    assert gadgets.build(f"{tmp_path}/a/own.py:mine").beta == 1.0


def test_a_file_that_is_edited_within_a_second_to_the_same_size_is_read_again(gadgets, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "own.py"
    for beta in ("1.0", "2.0"):
        path.write_text(GOOD.replace("= 0.5", f"= {beta}"))
        os.utime(path, (1_000_000_000, 1_000_000_000))
        assert gadgets.build(f"{path}:mine").beta == float(beta)


def plugin() -> Made:
    """From another package."""
    return {"from": "plugin"}


def shadow() -> Made:
    """Would take the place of one of ours."""
    return {"from": "shadow"}


def broken_load() -> Any:
    raise ImportError("no module named left_behind")


@pytest.fixture
def plugged(monkeypatch, gadgets) -> Registry[Made]:
    asked: list[str] = []

    def points(group: str) -> list[SimpleNamespace]:
        asked.append(group)
        return [
            SimpleNamespace(name="extra", load=lambda: plugin),
            SimpleNamespace(name="bare", load=lambda: shadow),
        ]

    monkeypatch.setattr(registry_module, "entry_points", points)
    gadgets.asked = asked
    return gadgets


def test_entry_points_of_the_kind_join_the_registry_and_are_looked_up_once(plugged):
    assert list(plugged) == ["bare", "extra", "full"]
    assert plugged.build("extra") == {"from": "plugin"}
    assert plugged["extra"].summary == "From another package."
    assert plugged.asked == ["tarry.gadgets"]


def test_an_entry_point_never_takes_the_place_of_what_is_there(plugged):
    assert plugged.build("bare") == {}


def test_an_entry_point_that_does_not_load_is_named_and_stops_nothing_else(monkeypatch, gadgets):
    points = [SimpleNamespace(name="wreck", load=broken_load), SimpleNamespace(name="extra", load=lambda: plugin)]
    monkeypatch.setattr(registry_module, "entry_points", lambda group: points)
    assert gadgets.build("bare") == {}
    assert gadgets.build("extra") == {"from": "plugin"}
    with pytest.raises(BadInput, match=r"--gadget wreck.*left_behind"):
        build_by_flags(gadgets, "wreck")


def test_a_file_of_the_users_leaves_no_module_under_its_plain_name(gadgets, tmp_path):
    path = written(tmp_path, "json_own_thing.py", GOOD)
    gadgets.build(f"{path}:mine")
    assert "json_own_thing" not in sys.modules
