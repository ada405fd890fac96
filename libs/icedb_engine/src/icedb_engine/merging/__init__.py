"""What one group of a merge is made of: its inputs, their order, and their rows in that order."""
