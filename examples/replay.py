"""Record the arrivals of one run and replay them with another method."""

import tempfile
from pathlib import Path

import tarry

with tempfile.TemporaryDirectory() as folder:
    first = Path(folder) / "fedasync"
    tarry.run("fedasync", "digits", time=3000, failure_rate=0.1, out=first)
    trace = {"name": "trace", "path": str(first / "arrivals.csv")}
    arrivals = []
    tarry.run("orthofl", "digits", time=3000, delay=trace, callbacks=[arrivals.append])
    came = [e for e in arrivals if e.kind == "arrival"]
    lost = [e for e in arrivals if e.kind == "lost"]
    print(f"{len(came)} arrivals and {len(lost)} losses, as in the recorded run")
