"""The checks are tried on libraries with one seeded defect each: see docs/contributing.md."""
