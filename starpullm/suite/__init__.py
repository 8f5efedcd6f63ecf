"""The validation suite: ``pytest --pyargs starpullm.suite`` checks the installed library on this machine."""
