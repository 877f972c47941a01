from __future__ import annotations
from typing import Any
def fast_call(name: str, dtype: str, args: list[Any], bind: Any) -> Any:
    return None

def has_fast_call(node: Any) -> bool:
    return False
