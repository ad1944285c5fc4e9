"""Toy models on every kind of support and transitions."""

import pytest

from explorers import toy_model
from hmmlm.model import Model


@pytest.fixture(params=["dense", "blocks", "uneven", "ragged"])
def support(request) -> str:
    return request.param


@pytest.fixture(params=["dense", "factored"])
def transitions(request) -> str:
    return request.param


@pytest.fixture
def model(support: str, transitions: str) -> Model:
    return toy_model(support, transitions)
