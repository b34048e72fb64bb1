"""Does a C project build in the view, and does make trust the times it finds there?"""

import os

from tests.support import conditions
from tests.support.mounted import run
from tests.support.tree import Tree
from tests.workloads.conftest import Mount

UNITS = 50

MAKEFILE = """
SOURCES := $(wildcard src/*.c)
OBJECTS := $(SOURCES:src/%.c=build/%.o)
program: libparts.a src/main.c include/parts.h
\t$(CC) -Iinclude -o $@ src/main.c -L. -lparts
libparts.a: $(filter-out build/main.o,$(OBJECTS))
\trm -f $@
\tar cr $@ $^
build/%.o: src/%.c include/parts.h
\t@mkdir -p build
\t$(CC) -O0 -Iinclude -MMD -c -o $@ $<
clean:
\trm -rf build libparts.a program
.PHONY: clean
"""

TREE: Tree = {
    "Makefile": MAKEFILE,
    "include/parts.h": "".join(f"int part{number}(void);\n" for number in range(UNITS)),
    **{
        f"src/part{number}.c": f'#include "parts.h"\nint part{number}(void) {{ return {number}; }}\n'
        for number in range(UNITS)
    },
    "src/main.c": '#include <stdio.h>\n#include "parts.h"\nint main(void) { printf("%d\\n", '
    + " + ".join(f"part{number}()" for number in range(UNITS))
    + "); return 0; }\n",
}


def test_a_c_project_builds_in_parallel_once_and_again_only_where_it_changed(mount: Mount) -> None:
    for tool in ("make", "cc", "ar"):
        conditions.require_tool(tool)
    sandbox = mount(TREE)
    where = sandbox.root
    total = sum(range(UNITS))
    run("make", "-j4", cwd=where)
    assert run("./program", cwd=where) == f"{total}\n"
    # Nothing is left to do, in this session and in the next.
    run("make", "-q", cwd=where)
    sandbox.remount()
    run("make", "-q", cwd=where)
    (where / "src/part7.c").write_text('#include "parts.h"\nint part7(void) { return 1007; }\n')
    done = run("make", "-j4", cwd=where)
    assert [line for line in done.splitlines() if " -c " in line] == [
        "cc -O0 -Iinclude -MMD -c -o build/part7.o src/part7.c"
    ]
    assert run("./program", cwd=where) == f"{total + 1000}\n"
    run("make", "clean", cwd=where)
    assert sorted(os.listdir(where)) == ["Makefile", "include", "src"]
    run("make", "-j4", cwd=where)
    run("make", "-q", cwd=where)
    assert run("./program", cwd=where) == f"{total + 1000}\n"
