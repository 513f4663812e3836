"""Defaults that the command line and the library share; a test sees that none is written down twice."""

from typing import Literal

READ = 5
"""Passages read for a question."""
SHOWN = 20
"""Passages shown when some are looked for."""
QUEUE = 256
"""Requests that may wait in a service."""
PATIENCE = 10.0
"""Seconds that a request to a service may wait; who would wait longer is refused at once."""
ENGINE: Literal["local", "ray"] = "local"
"""What does bulk work: processes of this machine, or the actors of a Ray cluster."""
OVERLAPPING: Literal["merged", "separate"] = "separate"
"""Whether spans that overlap in one place are one answer or several."""
ADAPTING = "adapting"
"""Where in its folder `adapt` has the run of its training."""
SHARED = ("lance", "postgres")
"""Systems that hold an index for others too."""
