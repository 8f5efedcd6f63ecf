"""The report of a run: a JSON file that says everything, and a page made from it.

Nothing here runs a check or knows who ran them: the page is made from the JSON file's content alone. Jinja2, the
package of the extra ``report``, is imported when a page is made.
"""
