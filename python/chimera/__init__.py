"""The old name of `chimera_pipeline`, which another package on PyPI has. The next version drops it."""

import warnings

from chimera_pipeline import *  # noqa: F403
from chimera_pipeline import __all__, __version__

warnings.warn("`import chimera` is now `import chimera_pipeline as chimera`; the next version drops the old name", FutureWarning, stacklevel=2)
