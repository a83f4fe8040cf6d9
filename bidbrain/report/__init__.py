"""The report of a simulation: tables, plots and the page that puts them together.

Everything is drawn from results and ledgers; nothing here simulates or decides. `style` holds the look of all plots.
Begin with `page.py`.
"""
