from __future__ import annotations

import json

from tarry.record.result import Result


def test_a_run_tells_clients_own_accuracy_in_a_line(cli, here, quick):
    said = cli("run", "--method", "fedavg", *quick, "--personalize", "2", "--out", "r")
    assert said.code == 0
    personal = Result.read(here / "r").personalization
    after, before = personal["after"], personal["before"]
    (line,) = [line for line in said.out.splitlines() if "personal accuracy" in line]
    assert f"personal accuracy {after['mean']:.4f} ± {after['sd']:.4f} after 2 epochs of fine-tuning" in line
    assert "over 4 clients" in line
    assert f"{before['mean']:.4f} before" in line
    assert json.loads((here / "r" / "result.json").read_text())["personalization"] == personal


def test_no_epochs_and_one_are_told_as_such(cli, quick):
    assert "without fine-tuning (mean ± sd over 4 clients" in cli("run", *quick, "--personalize", "0").out
    assert "after 1 epoch of fine-tuning" in cli("run", *quick, "--personalize", "1").out


def test_a_run_that_was_not_asked_says_nothing_of_it(cli, quick):
    assert "personal" not in cli("run", *quick).out


def test_a_comparison_has_a_column_for_it_when_asked(cli, here, quick, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    methods = ["--method", "local-only", "--method", "fedavg", "--seeds", "0,1"]
    said = cli("compare", *methods, *quick, "--personalize", "1", "--out", "c")
    assert said.code == 0
    words = " ".join(said.out.split())
    assert "personal %" in words
    assert "after 1 epoch of fine-tuning on its own data" in words
    summary = json.loads((here / "c" / "compare.json").read_text())
    runs = [Result.read(here / "c" / "fedavg" / f"seed-{s}").personalization for s in (0, 1)]
    row = next(r for r in summary["rows"] if r["label"] == "fedavg")
    assert row["personal"] == sum(r["after"]["mean"] for r in runs) / 2
    assert row["personal_sd"] == sum(r["after"]["sd"] for r in runs) / 2
    assert f"{100 * row['personal']:.1f} ± {100 * row['personal_sd']:.1f}" in words
    assert "personal %" in (here / "c" / "report.html").read_text()
    assert "personal %" in cli("report", "c", "--markdown").out


def test_without_being_asked_there_is_no_column(cli, here, quick):
    said = cli("compare", "--method", "fedavg", *quick, "--seeds", "0", "--out", "c")
    assert "ersonal" not in said.out
    assert "personal %" not in (here / "c" / "report.html").read_text()


def test_a_wrong_number_of_epochs_is_refused(cli, quick):
    said = cli("run", *quick, "--personalize", "-1")
    assert (said.code, said.complaints) == (2, ["--personalize -1: must be 0 or more"])
    assert cli("run", *quick, "--personalize", "some").code == 2
