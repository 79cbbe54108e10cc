from tests.distributed.conftest import ranks

__all__ = ["ranks"]
