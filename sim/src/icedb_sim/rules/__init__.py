"""The rules of the protocol, and how each is switched off."""
