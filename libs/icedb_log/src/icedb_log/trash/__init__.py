"""The trash: tables that were dropped, taken back, or purged."""
