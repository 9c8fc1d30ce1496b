"""`make demo`: the main job on embedded brokers, with processes killed in the middle and everything counted afterwards."""
