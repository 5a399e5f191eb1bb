"""Changed intervals inside Flower: with the installed version all of them are changed, with other code none breaks."""

from __future__ import annotations

import logging
import time
from types import SimpleNamespace

import pytest
from flwr.supercore.inflatable import inflatable_utils
from flwr.supernode import start_client_internal

from tarry.deploy import polling
from tarry.deploy.polling import idle_seconds


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    for name in ("pull_objects", "pull_and_inflate_object_from_tree"):
        function = getattr(inflatable_utils, name)
        monkeypatch.setattr(function, "__kwdefaults__", dict(function.__kwdefaults__))
    monkeypatch.setattr(start_client_internal, "time", time)


def test_all_intervals_are_shorter_with_the_installed_version(caplog):
    caplog.set_level(logging.WARNING, logger="tarry")
    assert polling.shorten_polling()
    assert inflatable_utils.pull_objects.__kwdefaults__["initial_backoff"] < 1
    assert start_client_internal.time is not time
    assert not caplog.records


def test_what_has_other_code_stays_as_it_is_and_is_named(monkeypatch, caplog):
    caplog.set_level(logging.WARNING, logger="tarry")
    monkeypatch.setattr(logging.getLogger("tarry"), "propagate", True)
    monkeypatch.setattr(inflatable_utils.pull_objects, "__kwdefaults__", {"backoff": 1.0})
    monkeypatch.setattr(start_client_internal, "time", SimpleNamespace())
    assert not polling.shorten_polling()
    assert inflatable_utils.pull_objects.__kwdefaults__ == {"backoff": 1.0}
    assert "initial_backoff" in inflatable_utils.pull_and_inflate_object_from_tree.__kwdefaults__
    assert ["polling for the content" in r.getMessage() for r in caplog.records] == [True, False]
    assert "polling of SuperNodes keeps Flower's own intervals" in caplog.records[1].getMessage()


def test_the_environment_switches_it_off(monkeypatch):
    monkeypatch.setenv(polling.SWITCH, "0")
    assert not polling.shorten_polling()
    assert start_client_internal.time is time


def test_an_idle_node_polls_less_and_less_often():
    sleeps = [idle_seconds(n, 0.01) for n in range(21)]
    assert sleeps[0] == 0.1
    assert sleeps == sorted(sleeps)
    assert sleeps[-1] == 3.0


def test_a_node_polls_a_slow_link_rarely():
    assert idle_seconds(0, 0.5) == 5.0
    assert idle_seconds(20, 60.0) == 15.0
