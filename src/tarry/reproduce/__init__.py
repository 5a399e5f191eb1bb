"""The papers' tables and figures from one command: `tarry reproduce orthofl/table2`.

    experiments/<paper>/<table>.toml            the setting, the paper's numbers and claims       reading, plan
    experiments/<paper>/results/<table>.json    what our runs gave                                jobs, running, store
    docs/results.md                             both beside each other                            page

All but pictures and tests of significance run with torch and numpy alone: `python -m tarry.reproduce`.
"""
