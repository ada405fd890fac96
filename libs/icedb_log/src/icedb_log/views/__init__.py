"""Tables that are fed by another one's commits."""
