"""What tests of this and other packages share: a store in memory, and the acceptance suite of all stores."""
