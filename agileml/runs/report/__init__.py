"""The page of a run: `proteus watch` serves it live, and report.html is the same page, frozen.

`view` folds events into the page's data, from `curves`, `work_view` and `market_view`; page.html, page.js and charts.js
draw it; `page` freezes it with config and summary, and may be changed without touching a run. `sentences` and `market`
word the events. `picture` is the one thing that matplotlib draws. Begin with `page`.
"""
