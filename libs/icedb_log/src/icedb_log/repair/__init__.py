"""Looking for damage in a table, and making its log anew from what its data files say."""
