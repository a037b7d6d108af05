"""Device simulators: environments stepped by the learner's sampler, without actors."""
