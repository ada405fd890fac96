"""The console: web pages about the tables of a warehouse, for people. See ``docs/console.md``."""
