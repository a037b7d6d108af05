"""Trackers: where the numbers of a run go besides the terminal and TensorBoard, chosen by `--track`.

    recorder --- RunView ---> outlets.Trackers --- pipe ---> process --- Tracker: csv, wandb, mlflow, your own
              (display room)    never waits                   one per tracker; may block or die

The package of a tracker is imported in its process only.
"""
