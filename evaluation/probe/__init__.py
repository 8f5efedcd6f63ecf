"""The probe on StarPU's own examples, as they are and with one access mode changed."""
