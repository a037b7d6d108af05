"""As Isaac Lab's: the launcher starts the simulator, which its other packages need."""

started = []


class AppLauncher:
    def __init__(self, launcher_args=None, **kwargs):
        assert launcher_args is None
        assert not started, "one simulator a process"
        started.append(kwargs)
