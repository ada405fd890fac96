"""Protocol buffers of IceDB: generated stubs, see ``proto/icedb/v1`` for the sources and their comments."""
