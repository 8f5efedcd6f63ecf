"""The validation suite: ``pytest --pyargs starpullm.suite`` runs it against the installed library, on this machine."""
