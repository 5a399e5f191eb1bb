"""Data sets by name, each by one loader, from the folder that TARRY_DATA names.

load("cifar10")         Arrays: training and test inputs and labels, checked
catalogue()             every set there is, with where it is looked for, how to get it, and what stands in
"""

from . import image_sets as image_sets  # fills the catalogue, as other modules of this room may
from .arrays import Arrays, hold_out
from .sets import DataSet, Form, Hub, add, catalogue, load

__all__ = ["Arrays", "DataSet", "Form", "Hub", "add", "catalogue", "hold_out", "load"]
