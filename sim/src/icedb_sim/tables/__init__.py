"""Tables, logs and steps that tests begin with."""
