"""What tests need of Spark: real clusters on the loopback interface."""
