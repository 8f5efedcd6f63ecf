"""The report of a run: a JSON file that says everything, and a page made from it.

Nothing here runs a check or knows who ran them: the page is made from the JSON file alone. Jinja2 and msgspec, the
packages of the extra ``report``, are imported when a page is made or a file is read.
"""
