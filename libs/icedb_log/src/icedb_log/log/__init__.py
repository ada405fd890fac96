"""The log: its wire, its fold, its readers, and the fence through which alone it grows."""
