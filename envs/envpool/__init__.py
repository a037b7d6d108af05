"""EnvPool: native vectors of many engines."""
