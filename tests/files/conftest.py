"""What tests of files use of the cache's."""

from tests.cache.conftest import cache as cache
