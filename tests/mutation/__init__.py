"""The checks are tried on libraries with one seeded defect each: see docs/mutations.md."""
