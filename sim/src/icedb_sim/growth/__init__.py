"""Models of logs and tables that have grown."""
