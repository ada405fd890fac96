"""Erasures with proof."""
