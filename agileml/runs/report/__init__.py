"""report.html of a run, drawn from its config, log of events and summary alone.

`page` puts the page together, `plots` and `market_plots` draw its pictures, `market` words what a market did; all of it
may be changed without touching a run. Begin with `page`.
"""
