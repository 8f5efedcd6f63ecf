"""Random sequences of calls, run by a state machine beside a reference model."""
