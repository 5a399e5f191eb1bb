"""One paper a file; no method imports another. Importing this room fills the registry."""

from . import asgd as asgd
from . import asynccurve as asynccurve
from . import ca2fl as ca2fl
from . import dcasgd as dcasgd
from . import fadas as fadas
from . import fedac as fedac
from . import fedasync as fedasync
from . import fedavg as fedavg
from . import fedbabu as fedbabu
from . import fedbuff as fedbuff
from . import feddyn as feddyn
from . import fedecho as fedecho
from . import fednova as fednova
from . import fedntd as fedntd
from . import fedogd as fedogd
from . import fedopt as fedopt
from . import fedprox as fedprox
from . import fedsam as fedsam
from . import fedsol as fedsol
from . import flanp as flanp
from . import gradma as gradma
from . import hfl as hfl
from . import knnper as knnper
from . import localonly as localonly
from . import mifa as mifa
from . import moon as moon
from . import orthocorrect as orthocorrect
from . import orthofl as orthofl
from . import perfedavg as perfedavg
from . import safa as safa
from . import scaffold as scaffold
from . import tifl as tifl
from . import twafl as twafl
from .registry import methods as methods

__all__ = ["methods"]
