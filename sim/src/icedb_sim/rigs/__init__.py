"""Real servers and processes that tests start on loopback."""
