"""How fast training is: measurements, comparisons with other programs, the gate between two builds."""
