"""Words that were renamed since the reference commit of `make bits`: extend the table with each rename.

Settings, parameters, their values, event kinds, fields of events and of results. The probes use the old name where this
tree knows it, and the new one elsewhere. The reference's cached results do not depend on this file.
"""

from __future__ import annotations

__all__ = ["NAMES"]

NAMES = {
    "optimiser": "optimizer",
    "personalise": "personalize",
    "personal": "personalized",
    "distil": "distill",
    "unlabelled": "unlabeled",
    "presence": "availability",
    "hand_out": "dispatch",
    "refused": "rejected",
    "trained": "executor_info",
}
