"""How a run writes: the table as it opened it, the fence, the invariants, and the commits that pass both."""
