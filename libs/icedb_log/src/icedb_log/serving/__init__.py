"""The state of tables as readers are served it: one shared read of the log, the files that a query wants, figures."""
