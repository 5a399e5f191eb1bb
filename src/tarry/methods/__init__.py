"""One paper a file; no method imports another. Importing this room fills the registry."""

from . import asgd as asgd
from . import asynccurve as asynccurve
from . import dcasgd as dcasgd
from . import fedasync as fedasync
from . import fedavg as fedavg
from . import fedbuff as fedbuff
from . import fedecho as fedecho
from . import fedogd as fedogd
from . import fedprox as fedprox
from . import fedsol as fedsol
from . import orthocorrect as orthocorrect
from . import orthofl as orthofl
from .registry import methods as methods

__all__ = ["methods"]
