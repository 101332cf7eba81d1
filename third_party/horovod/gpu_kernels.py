"""Compile Horovod's few CUDA kernels with NVRTC, which is a library of the Python registry; nvcc 12 is not.

The result is a header with machine code for each generation of GPUs and PTX for later ones, which
`cuda_kernels.cc` of our changes loads when a kernel is first needed. No GPU is needed to compile. Standard
library only, as build.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path

# Compute capabilities with machine code of their own: Volta to Blackwell. The driver of another GPU compiles
# the PTX, which needs a driver as new as NVRTC.
CAPABILITIES = (70, 75, 80, 86, 89, 90, 100, 120)
PTX_FOR = 70

BLOCKS_PER_COPY = 8
"""As BLOCKS_PER_COPY_D2D_KERNEL of Horovod's cuda_params.h."""

TYPES = {
    "uint8_t": "double",
    "int8_t": "double",
    "int32_t": "double",
    "int64_t": "double",
    "__half": "__half",
    "float": "float",
    "double": "double",
}
"""What can be scaled, and the type of the factor."""

NAMES = (
    f"batched_memcpy_k<{BLOCKS_PER_COPY}>",
    "scale_buffer_half2_k",
    *(f"scale_buffer_k<{element}, {factor}>" for element, factor in TYPES.items()),
    *(
        f"batched_scaled_memcpy_k<{element}, {BLOCKS_PER_COPY}, {factor}>"
        for element, factor in TYPES.items()
    ),
)
"""Each kernel that the launches of cuda_kernels.cc ask for, by the name that they use."""

NAMESPACE = "horovod::common::"


class CompileError(Exception):
    """NVRTC did not like it; the message has its words."""


class Compiler:
    """NVRTC on one source file."""

    def __init__(self, library: Path, source: Path, include: Sequence[Path]) -> None:
        self._nvrtc = ctypes.CDLL(str(library))
        self._source = source
        self._include = [f"--include-path={path}" for path in (source.parent, *include)]

    def compile(self, architecture: str) -> tuple[bytes, dict[str, str]]:
        """The code for `sm_80` or `compute_80`, and what each kernel is called in it."""
        program = ctypes.c_void_p()
        self._call(
            "CreateProgram",
            ctypes.byref(program),
            self._source.read_bytes(),
            self._source.name.encode(),
            0,
            None,
            None,
        )
        try:
            for name in NAMES:
                self._call("AddNameExpression", program, self._full(name))
            options = [f"--gpu-architecture={architecture}", "--std=c++14", *self._include]
            words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            try:
                self._call("CompileProgram", program, len(options), words)
            except CompileError as error:
                raise CompileError(f"{error}\n{self._log(program)}") from None
            symbols = {name: self._symbol(program, name) for name in NAMES}
            return self._code(program, "PTX" if architecture.startswith("compute") else "CUBIN"), symbols
        finally:
            self._call("DestroyProgram", ctypes.byref(program))

    def _full(self, name: str) -> bytes:
        return f"{NAMESPACE}{name}".encode()

    def _symbol(self, program: ctypes.c_void_p, name: str) -> str:
        symbol = ctypes.c_char_p()
        self._call("GetLoweredName", program, self._full(name), ctypes.byref(symbol))
        assert symbol.value is not None
        return symbol.value.decode()

    def _code(self, program: ctypes.c_void_p, kind: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"Get{kind}Size", program, ctypes.byref(size))
        code = ctypes.create_string_buffer(size.value)
        self._call(f"Get{kind}", program, code)
        return code.raw

    def _log(self, program: ctypes.c_void_p) -> str:
        size = ctypes.c_size_t()
        self._call("GetProgramLogSize", program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        self._call("GetProgramLog", program, log)
        return log.value.decode(errors="replace")

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._nvrtc, f"nvrtc{name}")(*arguments)
        if code != 0:
            words = self._nvrtc.nvrtcGetErrorString
            words.restype = ctypes.c_char_p
            raise CompileError(f"nvrtc{name}: {words(code).decode()}")


def header(images: Mapping[int, bytes], symbols: Mapping[str, str]) -> str:
    """Images by compute capability (0 is PTX) as C++."""
    lines = ["// Made by third_party/horovod/gpu_kernels.py.", "#pragma once", ""]
    for capability, code in images.items():
        lines.append(f"alignas(16) static const unsigned char kernel_image_{capability}[] = {{")
        for start in range(0, len(code), 32):
            lines.append(f"  {','.join(map(str, code[start : start + 32]))},")
        lines.append("};")
    lines.append("struct KernelImage { int major, minor; const unsigned char* data; };")
    lines.append("static const KernelImage kernel_images[] = {")
    lines += [f"  {{{each // 10}, {each % 10}, kernel_image_{each}}}," for each in images]
    lines += ["};", "struct KernelSymbol { const char *name, *symbol; };"]
    lines.append("static const KernelSymbol kernel_symbols[] = {")
    lines += [f'  {{"{name}", "{symbol}"}},' for name, symbol in symbols.items()]
    lines += ["};", ""]
    return "\n".join(lines)


def compile_kernels(nvrtc: Path, include: Sequence[Path], tree: Path) -> Path:
    """Write the header that cuda_kernels.cc of this source tree includes."""
    folder = tree / "horovod" / "common" / "ops" / "cuda"
    compiler = Compiler(nvrtc, folder / "cuda_kernels.cu", include)
    ptx, symbols = compiler.compile(f"compute_{PTX_FOR}")
    images = {0: ptx}
    for capability in CAPABILITIES:
        images[capability], named = compiler.compile(f"sm_{capability}")
        if named != symbols:
            raise CompileError(f"the kernels have other names for sm_{capability}: {named}")
    written = folder / "cuda_kernel_images.h"
    written.write_text(header(images, symbols))
    return written
