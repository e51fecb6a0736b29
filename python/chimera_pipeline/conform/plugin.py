"""Fixtures for pytest, which knows them where this package is installed."""

from __future__ import annotations

from typing import Any, Callable

import pytest


@pytest.fixture
def pipeline_order() -> Callable[..., Any]:
    """`chimera_pipeline.conform.check_order`."""
    from . import check_order

    return check_order


@pytest.fixture
def pipeline_trial() -> Callable[..., Any]:
    """`chimera_pipeline.conform.check_pipeline`; the test is skipped where torch is not installed."""
    pytest.importorskip("torch")
    from . import check_pipeline

    return check_pipeline
