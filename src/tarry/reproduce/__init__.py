"""Reproduction of the papers' tables and figures by one command: `tarry reproduce orthofl/table2`.

    experiments/<paper>/<table>.toml            the setting, the paper's numbers and claims       parser, experiment
    experiments/<paper>/results/<table>.json    the results of our runs                           jobs, running, store
    docs/results.md                             both, compared                                    page

`python -m tarry.reproduce` needs torch and numpy only, and matplotlib for plots.
"""
