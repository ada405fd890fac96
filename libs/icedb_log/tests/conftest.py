from icedb_log.testing.profiles import load_profile

load_profile()
