"""What tests the system: fakes, the simulation, the rules that it switches off. Nobody who uses it installs it."""
