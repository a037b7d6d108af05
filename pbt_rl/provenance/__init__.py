"""With what a run was made: the versions of packages, and the commit of this source tree."""
