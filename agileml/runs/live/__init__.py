"""The live page of a run: its events summed up for the page, and the server that shows it on this computer.

`view` is pure; `page.html` draws a view, live or frozen in one file; `server` sends views as they change; `sources`
reads logs and jobs. Begin with `view`.
"""
