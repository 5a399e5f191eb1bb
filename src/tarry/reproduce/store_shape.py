"""Shape of a file of stored results."""

from __future__ import annotations

from typing import Any

from ..record.shapes import (
    Misfit,
    Shape,
    anything,
    between,
    count,
    either,
    fields,
    is_whole_key,
    list_of,
    number,
    optional,
    table_of,
    text,
)

__all__ = ["STORE", "misplaced"]

_value = optional(number)
_columns = fields(dict.fromkeys(("time", "updates", "accuracy", "loss"), list_of(_value)))


def _curve(value: Any, place: str) -> None:
    """Fit columns of equal length."""
    _columns(value, place)
    if len({len(column) for column in value.values()}) > 1:
        raise Misfit(f"{place.lstrip('.')} has columns of different lengths")


_run = fields(
    {"numbers": table_of(_value), "curve": _curve, "weights": text, "made": count},
    {"warnings": list_of(text), "executor_info": text},
)
_cell = fields(
    {"fingerprint": text, "seeds": table_of(_run, is_whole_key)}, {"changed": text, "settings": table_of(anything)}
)
_result: Shape = fields(
    {},
    {
        "numbers": table_of(table_of(table_of(either(table_of(_value), _value), is_whole_key))),
        "axes": fields({}, {"x": text, "y": text}),
        "notes": list_of(text),
        "seeds": list_of(between(0, 2**63 - 1)),
    },
)

#: experiments/<paper>/results/<table>.json
STORE: Shape = fields(
    {},
    {
        "experiment": text,
        "made": list_of(table_of(text)),
        "cells": table_of(table_of(_cell)),
        "study": table_of(
            fields({"fingerprint": text, "made": count, "result": _result}, {"settings": table_of(anything)})
        ),
        "sha256": text,
    },
)


def misplaced(data: dict[str, Any]) -> str:
    """Return which index of a command and machine is that of none; "" if all are right."""
    runs = [run for sizes in data["cells"].values() for cell in sizes.values() for run in cell["seeds"].values()]
    wrong = [found["made"] for found in [*runs, *data["study"].values()] if found["made"] >= len(data["made"])]
    return f"made is {wrong[0]}, and {len(data['made'])} are listed" if wrong else ""
