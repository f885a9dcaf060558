"""For all tests of JAX's front end."""

import pytest

pytest.importorskip("jax", reason="JAX is not installed (pip install jax)")
