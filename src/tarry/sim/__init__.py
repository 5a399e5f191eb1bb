"""The virtual clock: delays, who is there when, the simulator and its executors. Importing fills the delay registry."""

from . import delays as _generic  # noqa: F401
from . import measured_delays as _measured  # noqa: F401
from . import paper_delays as _papers  # noqa: F401
