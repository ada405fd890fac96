"""What tests of services share: a clock that stands still, and real Redis servers."""
