"""The main job on simulated hosts, end to end, each claim checked: `python -m paceline.sim.demo`, or `make demo`."""
