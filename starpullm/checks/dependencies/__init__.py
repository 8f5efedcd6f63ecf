"""The order of tasks that the declared accesses require, compared with StarPU's graph, with a run, and without reuse.

Everything here follows from the order of submission and the access modes alone. StarPU's rules, for each handle:

- A read waits for the last write (read after write).
- A write waits for the last write and for the reads since then (write after write, write after read).
- Reads commute.
- Consecutive contributions (``REDUX``) commute. As a group they wait for what came before the first of them, as a
  ``READ_WRITE`` does, and the next access of another mode waits for all of them.
"""
