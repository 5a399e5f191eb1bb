"""Data sets by name, each by one loader, from the folder that TARRY_DATA names.

fetch("mrpc")           what the set is made of: Arrays of images or series, or Texts
load("cifar10")         Arrays: training and test inputs and labels, checked
catalogue()             every set there is, with where it is looked for, how to get it, and what stands in
"""

from . import image_sets as image_sets  # these two fill the catalogue
from . import text_sets as text_sets
from .arrays import ArrayDataset, hold_out
from .sets import DataSet, FileFormat, HubSource, add_set, catalog, fetch, load
from .texts import TextDataset

__all__ = [
    "ArrayDataset",
    "DataSet",
    "FileFormat",
    "HubSource",
    "TextDataset",
    "add_set",
    "catalog",
    "fetch",
    "hold_out",
    "load",
]
