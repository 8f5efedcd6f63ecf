"""How strong the checks are, tried before a release: on seeded defects, generated mutants, and the probe's lies."""
