"""How long an idle node sleeps."""

from __future__ import annotations

from tarry.deploy.polling import idle_seconds


def test_an_idle_node_polls_less_and_less_often():
    sleeps = [idle_seconds(n, 0.01) for n in range(21)]
    assert sleeps[0] == 0.3
    assert sleeps == sorted(sleeps)
    assert sleeps[-1] == 3.0


def test_a_node_polls_a_slow_link_rarely():
    assert idle_seconds(0, 0.5) == 5.0
    assert idle_seconds(20, 60.0) == 15.0
