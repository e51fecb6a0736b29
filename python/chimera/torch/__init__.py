"""The old name of `chimera_pipeline.torch`."""

from chimera_pipeline.torch import *  # noqa: F403
from chimera_pipeline.torch import __all__
