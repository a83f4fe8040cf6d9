"""Recorded and made markets: prices (`prices`), the capacity of pools (`availability`), and the files that hold them.

`readers` and `archive` read and write files, `fetch` asks AWS, `generate` makes a seeded market. A new file format
touches `readers` alone. Begin with `prices.py`: a history is the steps of every market's price.
"""
