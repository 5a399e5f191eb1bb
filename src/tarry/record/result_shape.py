"""Shape of result.json: the fields of a `Result`, their types, and the tables of --diagnose and --personalize."""

from __future__ import annotations

from .shapes import (
    Shape,
    count,
    either,
    fields,
    flag,
    list_of,
    number,
    optional,
    row,
    seconds,
    table_of,
    text,
    whole,
)

__all__ = ["BINDING", "RESULT"]

_score = optional(number)
_value = either(list_of(optional(number)), optional(number))
_by_client = table_of(optional(number))

_group = optional(fields({}, {"clients": count, "accuracy": _score}))
_by_speed = fields({}, {"accuracy": _score, "variance": _score, "active": _group, "stragglers": _group})
_diagnostics: Shape = fields(
    {},
    {
        "every": optional(seconds),
        "series": optional(table_of(list_of(row(_score, _value, _score)))),
        "participation": optional(_by_client),
        "seconds": optional(_by_client),
        "validation": optional(table_of(optional(list_of(row(_score, _score, _score))))),
        "layers": optional(list_of(text)),
        "by_speed": optional(_by_speed),
    },
)
_over_clients = fields({"mean": _score, "sd": _score}, {"per_client": list_of(_score)})
_personalization = fields(
    {"epochs": count, "clients": count, "rejected": count, "before": _over_clients, "after": _over_clients},
    {"metric": text},
)

_point = (seconds, count, _score, _score)
_by_name = table_of(_score)
_metric = fields({"name": text, "higher_is_better": flag, "unit": text}, {"best": number}, closed=True)

#: what the digests in result.json are of
BINDING: Shape = fields(
    {
        "settings_sha256": optional(text),
        "files": table_of(
            row(count, text), key=lambda name: "/" not in name.removeprefix("proofs/") and ".." not in name
        ),
    }
)

RESULT: Shape = fields(
    {
        **dict.fromkeys(("method", "label", "task", "weights_sha256", "version"), text),
        "seed": whole,
        **dict.fromkeys(("n_clients", "updates", "rounds", "lost", "rejected"), count),
        **dict.fromkeys(("bytes_up", "bytes_down", "peak_server_bytes"), count),
        **dict.fromkeys(("virtual_time", "wall_s"), seconds),
        **dict.fromkeys(("final_accuracy", "final_loss"), _score),
        "curve": list_of(either(row(*_point, _by_name), row(*_point))),
        "staleness": fields(dict.fromkeys(("mean", "p95", "max"), seconds), closed=True),
    },
    {
        **dict.fromkeys(("clock", "executor_info"), text),
        **dict.fromkeys(("majority_accuracy", "target"), _score),
        "warnings": list_of(text),
        "diagnostics": optional(_diagnostics),
        "personalization": optional(_personalization),
        **dict.fromkeys(("validation_metrics", "test_metrics"), table_of(_score)),
        "early_stopping": fields(
            {"patience": count, "stop_reason": text, "best_time": seconds, "best_updates": count}, closed=True
        ),
        "metrics": list_of(_metric),
        "bound_to": optional(BINDING),
    },
    closed=True,
)
