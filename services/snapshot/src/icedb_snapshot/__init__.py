"""The snapshot service: answers which data files are live, and exports what the log says about each table."""
