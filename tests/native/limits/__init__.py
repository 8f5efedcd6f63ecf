"""What starpullm.h promises on both sides of each limit, with the whole sentence of each refusal."""
