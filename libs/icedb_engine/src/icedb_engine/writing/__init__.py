"""From sorted rows to data files: layout, encoding, upload, statistics, footers."""
