"""How fast training is: measurements, comparisons of builds, and comparisons with other programs."""
