"""Data sets by name, read from the folder that TARRY_DATA names.

fetch("mrpc")           the contents of the set: an ArrayDataset (images, series) or a TextDataset
load("cifar10")         an ArrayDataset: checked training and test inputs and labels
catalog()               every data set: where it is looked for, how to get it, and what can replace it
"""

from . import image_sets as image_sets  # these two modules fill the catalog
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
