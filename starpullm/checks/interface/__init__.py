"""What starpullm.h promises beside the bits of a training: limits and their sentences, reports, and files."""
