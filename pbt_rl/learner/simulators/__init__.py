"""Device simulators: environments that the learner's sampler steps, without actors."""
