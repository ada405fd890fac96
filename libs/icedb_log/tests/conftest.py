from icedb_sim.tables.profiles import load_profile

load_profile()
