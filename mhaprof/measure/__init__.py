"""The things that measure: operations, time, memory, numerics, environment."""
