"""A GPU for tests: runs the CUDA C++ of a kernel on a CPU, exactly, and looks for races (cuda_emulator/emulator.h)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.support.cases.convolution import Array, Shape
from tests.support.gpu.driver import make_driver
from tvmconvgrad.compiler.cuda.codegen import Program
from tvmconvgrad.nvidia.driver import Driver, room_for_map
from tvmconvgrad.nvidia.launches import Argument, Launch
from tvmconvgrad.nvidia.tensor_maps import Tensor, TensorMap

COMPILER = "g++"
needs_emulator = pytest.mark.skipif(
    shutil.which(COMPILER) is None or sys.platform != "linux", reason=f"the emulator of a GPU needs {COMPILER} on Linux"
)
_FOLDER = Path(__file__).with_name("cuda_emulator")
_OPTIONS = ("-std=c++17", "-Og", "-w", "-fsanitize=address", f"-I{_FOLDER}")
_ASM = re.compile(r'asm volatile\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)((?::.*?)?)\);', re.DOTALL)
_DYNAMIC = re.compile(r"extern __shared__ __align__\((\d+)\) (\w+) (\w+)\[\];")
_KERNEL = re.compile(
    r"__global__ void (?:__cluster_dims__\((\d+), 1, 1\) )?(?:__launch_bounds__\([^)]*\) )?(\w+)\((.*?)\) \{"
)
ORDERS = ("forward late", "backward late", "forward early", "backward early")
"""In which order the threads and blocks run, and whether copies take effect late or early."""


@dataclass(frozen=True)
class Emulator:
    """A folder with the compiled emulator, and the driver that makes its tensor maps."""

    folder: Path
    driver: Driver

    @classmethod
    def prepare(cls, folder: Path) -> Emulator:
        _run([COMPILER, *_OPTIONS, "-c", *map(str, _FOLDER.glob("*.cpp"))], folder)
        header = _FOLDER / "emulator.h"  # parsed once for all kernels: what is compiled in the folder finds it there
        _run([COMPILER, *_OPTIONS, "-x", "c++-header", str(header), "-o", str(folder / f"{header.name}.gch")])
        return cls(folder, make_driver(folder).driver)

    def run(
        self, program: Program, inputs: Sequence[Array], shape: Shape, orders: Sequence[str] = ORDERS
    ) -> list[Array]:
        """A kernel's result in each order. AssertionError with its words where the emulator finds a fault."""
        source, binary = self.folder / "kernel.cpp", self.folder / "kernel"
        result = np.empty(shape, inputs[0].dtype)
        source.write_text(_translated(program.source) + self._main(program, [*inputs, result]))
        _run([COMPILER, *_OPTIONS, str(source), *map(str, self.folder.glob("*.o")), "-o", str(binary)])
        for name, array in zip(("first", "second"), inputs, strict=True):
            (self.folder / name).write_bytes(array.tobytes())
        found = []
        for order in orders:
            _run([str(binary), *order.split()], self.folder)
            found.append(np.fromfile(self.folder / "out", result.dtype).reshape(shape))
        return found

    def _main(self, program: Program, tensors: Sequence[Array]) -> str:
        """The program that reads the inputs, launches what a call launches, and writes the result."""
        sizes: dict[int | Tensor, int] = {
            name: tensor.nbytes for name, tensor in zip(("first", "second", "out"), tensors, strict=True)
        }
        offsets = sorted({each for launch in program.launches for each in launch.places if isinstance(each, int)})
        ends = [*offsets[1:], program.workspace_bytes]
        sizes |= {offset: end - offset for offset, end in zip(offsets, ends)}
        lines = [f'  char* {_name(key)} = emulator::tensor("{key}", {size});' for key, size in sizes.items()]
        kernels = {name: (int(blocks or 1), _types(words)) for blocks, name, words in _KERNEL.findall(program.source)}
        lines += [self._launch(launch, *kernels[launch.function]) for launch in program.launches]
        body = "\n".join(lines)
        return f"""
namespace emulator {{
void choose(bool runs_backward, bool copies_late);
void launch(dim3 grid, dim3 block, size_t cluster, size_t bytes, const std::function<void()>& body);
char* tensor(const char* name, size_t bytes);
void write(const char* name, const char* bytes, size_t size);
}}
template <class Map>
Map map_of(std::initializer_list<unsigned char> bytes, const void* memory) {{
  Map map;
  std::copy(bytes.begin(), bytes.end(), map.bytes);
  reinterpret_cast<TensorMap*>(map.bytes)->memory = static_cast<const unsigned char*>(memory);
  return map;
}}
int main(int, char** words) {{
  emulator::choose(!strcmp(words[1], "backward"), !strcmp(words[2], "late"));
{body}
  emulator::write("out", {_name("out")}, {sizes["out"]});
}}
"""

    def _launch(self, launch: Launch, cluster: int, types: Sequence[str]) -> str:
        """A launch; its tensor maps are the driver's."""
        arguments = ", ".join(self._argument(*each) for each in zip(launch.arguments, types, strict=True))
        grid, block = ("{" + ", ".join(map(str, extent)) + "}" for extent in (launch.grid, launch.block))
        body = f"[=] {{ {launch.function}({arguments}); }}"
        return f"  emulator::launch({grid}, {block}, {cluster}, {launch.shared_bytes}, {body});"

    def _argument(self, argument: Argument, kind: str) -> str:
        if not isinstance(argument, TensorMap):
            return f"({kind}){_name(argument)}"
        room = room_for_map()
        self.driver.encode(room, argument, 0)
        return f"map_of<tvmconvgrad_tensor_map>({{{', '.join(map(str, room))}}}, {_name(argument.tensor)})"


def _run(command: Sequence[str], folder: Path | None = None) -> None:
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
    assert done.returncode == 0, f"{command[0]} ended with {done.returncode}:\n{done.stderr[-4000:]}"


def _translated(source: str) -> str:
    """CUDA's C++ in the emulator's words: inline PTX becomes calls of the functions that are named like it."""
    source = _DYNAMIC.sub(r"\2* \3 = (\2*)emulator::shared(\1);", source)
    return '#include "emulator.h"\n' + _ASM.sub(_instruction, source)


def _instruction(match: re.Match[str]) -> str:
    """The calls for a statement asm volatile(text : outputs : inputs : what changes), one for each instruction."""
    text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', match[1])).replace("\\n", "")
    values = [value for part in _parts(match[2])[:2] for value in _parenthesized(part)]
    instructions = [part for each in text.split(";") if (part := each.strip().lstrip("{ ")) not in ("", "}")]
    return f"{{ {' '.join(_call(each, values) for each in instructions)} }}"


def _call(instruction: str, values: Sequence[str]) -> str:
    """The call for an instruction, on its predicate if it has one, or the declaration of a register."""
    if instruction.startswith("@"):
        predicate, _, rest = instruction.partition(" ")
        return f"if ({predicate[1:]}) {_call(rest, values)}"
    name, _, operands = instruction.partition(" ")
    if name == ".reg":
        kind, register = operands.split()
        return f"{'bool' if kind == '.pred' else 'unsigned'} {register};"
    words = re.sub(r"[{}\[\]]", "", operands)
    for i in reversed(range(len(values))):
        words = words.replace(f"%{i}", values[i])
    return f"{re.sub(r'[^A-Za-z0-9]', '_', name)}({words});"


def _parts(text: str) -> list[str]:
    """What the colons outside of all parentheses separate: outputs, inputs, what changes."""
    found, depth = [""], 0
    for letter in text:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == ":" and depth == 0:
            found.append("")
        else:
            found[-1] += letter
    return found[1:]


def _parenthesized(text: str) -> list[str]:
    """The outermost expressions in parentheses, with these: of `"r"(expression), ...`."""
    found: list[str] = []
    depth = 0
    for letter in text:
        if letter == "(" and depth == 0:
            found.append("")
        depth += letter == "("
        if depth:
            found[-1] += letter
        depth -= letter == ")"
    return found


def _name(argument: int | Tensor) -> str:
    return f"piece_{argument}" if isinstance(argument, int) else f"tensor_{argument}"


def _types(parameters: str) -> list[str]:
    return [re.sub(r"__restrict__.*", "", parameter).strip() for parameter in parameters.split(",")]
