"""One paper a file; no method imports another. Importing this room fills the registry."""

from . import asgd as asgd
from . import dcasgd as dcasgd
from . import fedasync as fedasync
from . import fedavg as fedavg
from . import fedbuff as fedbuff
from . import fedprox as fedprox
from . import orthocorrect as orthocorrect
from . import orthofl as orthofl
from .registry import methods as methods

__all__ = ["methods"]
