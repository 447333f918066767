"""Long-lived processes give up what was compiled before the system ends them; threads share one heap."""

import ctypes
import subprocess
import sys

import jax
import pytest

from redenvelope.engine import programs


@pytest.mark.parametrize(("most", "kept"), [(10**9, 1), (10, 0)])
def test_programs_are_forgotten_near_the_limit_of_a_process_and_not_before(most: int, kept: int) -> None:
    program = jax.jit(lambda number: number + 1)
    program(1.0)
    programs.forget_programs(most)
    assert program._cache_size() == kept


_COUNTED = """
import ctypes, threading
from redenvelope.engine.memory import share_arena
{call}
library, text, size = ctypes.CDLL(None), ctypes.c_char_p(), ctypes.c_size_t()
library.open_memstream.restype = ctypes.c_void_p
library.malloc.restype = library.fopen.restype = ctypes.c_void_p
for thread in [threading.Thread(target=library.malloc, args=(100_000,)) for _ in range(4)]:
    thread.start()
    thread.join()
stream = ctypes.c_void_p(library.open_memstream(ctypes.byref(text), ctypes.byref(size)))
library.malloc_info(0, stream)
library.fclose(stream)
print(text.value.count(b"<heap nr"))
"""


@pytest.mark.skipif(
    not (sys.platform == "linux" and hasattr(ctypes.CDLL(None), "malloc_info")), reason="glibc alone has arenas"
)
@pytest.mark.parametrize(("call", "one"), [("share_arena()", True), ("", False)])
def test_threads_share_one_heap_where_they_are_told_to(call: str, one: bool) -> None:
    code = _COUNTED.format(call=call)
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert (int(told) == 1) is one
