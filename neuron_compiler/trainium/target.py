"""The machines that groups are tiled for: every number of a chip that the compiler knows, and where it is published.

One frozen record per chip generation; no other module holds a number of the hardware. Paths in the comments are files
of the public repository aws-neuron/aws-neuron-sdk (state of August 2026):

    [A1] nki/guides/architecture/trainium_inferentia2_arch.rst
    [A2] nki/guides/architecture/trainium2_arch.rst
    [A3] nki/guides/architecture/trainium3_arch.rst
    [H2] about-neuron/arch/neuron-hardware/trainium2.rst
    [H3] about-neuron/arch/neuron-hardware/trainium3.rst
    [ISA] nki/api/nki/isa (docstrings of the instructions)

Sizes of SBUF and PSUM, clocks and peak rates are those of one NeuronCore, which runs a program; HBM is that of the
whole chip. A number that no source states is listed in ``assumed``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from neuron_compiler.errors import OptionsError

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


@dataclass(frozen=True, kw_only=True)
class Target:
    """One chip generation.

    Attributes:
        name: as in ``options={"target": ...}``.
        neuron_cores: NeuronCores per chip.
        num_partitions: partitions of SBUF and of PSUM, and rows of the TensorE array: the most a tile may span on
            its partition dimension, and the most one matmul instruction contracts over.
        stationary_free_max: elements of a stationary tile along its free dimension; they become output partitions.
        moving_free_max: elements of a moving tile along its free dimension, for an fp32 result.
        psum_banks: banks per PSUM partition.
        psum_bank_bytes_per_partition: bytes of one bank in one partition; one accumulation stays within a bank.
        sbuf_bytes_per_partition: bytes of SBUF in one partition.
        sbuf_access_elements_max: elements in each partition that one instruction reaches in SBUF.
        psum_access_elements_max: the same in PSUM.
        bn_stats_free_max: elements in each partition that one ``bn_stats`` takes.
        max8_free_min: fewest elements in each partition that ``max8`` and its kin take.
        max8_free_max: most of them.
        vector_transpose_max: rows and columns of a transpose on VectorE.
        psum_dtypes_of_matmul: types in which TensorE may write a product, by their names in IR text.
        hbm_bytes: capacity of the chip's device memory.
        hbm_bytes_per_second: bandwidth of the chip's device memory.
        dma_engines: DMA engines per chip.
        tensor_clock_hz: clock of TensorE.
        vector_clock_hz: clock of VectorE.
        scalar_clock_hz: clock of ScalarE.
        gpsimd_clock_hz: clock of GpSimdE.
        bf16_flops_per_second: dense peak of one core's TensorE on bf16, fp16 and tf32; a multiply-add counts two.
        fp32_flops_per_second: dense peak of one core's TensorE on fp32.
        assumed: names of the fields above that no public source states.
    """

    name: str
    neuron_cores: int
    num_partitions: int
    stationary_free_max: int
    moving_free_max: int
    psum_banks: int
    psum_bank_bytes_per_partition: int
    sbuf_bytes_per_partition: int
    psum_dtypes_of_matmul: tuple[str, ...]
    hbm_bytes: int
    hbm_bytes_per_second: float
    dma_engines: int
    tensor_clock_hz: float
    vector_clock_hz: float
    scalar_clock_hz: float
    gpsimd_clock_hz: float
    bf16_flops_per_second: float
    fp32_flops_per_second: float
    # The same on every generation so far.
    sbuf_access_elements_max: int = 64 * KIB  # [A1]
    psum_access_elements_max: int = 4 * KIB  # [A1]
    bn_stats_free_max: int = 512  # [ISA]
    max8_free_min: int = 8  # [ISA]
    max8_free_max: int = 16384  # [ISA]
    vector_transpose_max: int = 32  # [ISA]
    assumed: tuple[str, ...] = ()

    def start_partitions(self, partitions: int) -> tuple[int, ...]:
        """Where an access to so many partitions may begin: at any quarter of them, half, or at the first. [A1]"""
        parts = 4 if 4 * partitions <= self.num_partitions else 2 if 2 * partitions <= self.num_partitions else 1
        return tuple(range(0, self.num_partitions, self.num_partitions // parts))

    @property
    def sbuf_bytes(self) -> int:
        """Bytes of SBUF of one core."""
        return self.num_partitions * self.sbuf_bytes_per_partition

    @property
    def psum_bytes_per_partition(self) -> int:
        """Bytes of PSUM in one partition, all banks together."""
        return self.psum_banks * self.psum_bank_bytes_per_partition

    @property
    def psum_bytes(self) -> int:
        """Bytes of PSUM of one core."""
        return self.num_partitions * self.psum_bytes_per_partition


TRN1 = Target(
    name="trn1",
    neuron_cores=2,  # [A1]
    num_partitions=128,  # [A1] SBUF and PSUM, PE rows
    stationary_free_max=128,  # [A1] tile size rule 1
    moving_free_max=512,  # [A1] tile size rule 3
    psum_banks=8,  # [A1]
    psum_bank_bytes_per_partition=2 * KIB,  # [A1] 512 fp32 elements
    sbuf_bytes_per_partition=192 * KIB,  # [A1] 24 MiB
    psum_dtypes_of_matmul=("f32",),  # [A1] [A2]
    hbm_bytes=32 * GIB,  # [A1]
    hbm_bytes_per_second=820e9,  # [A1]
    dma_engines=32,  # [A1]
    tensor_clock_hz=2.8e9,  # [A1]
    vector_clock_hz=1.12e9,  # [A1]
    scalar_clock_hz=1.4e9,  # [A1]
    gpsimd_clock_hz=1.4e9,  # [A1]
    bf16_flops_per_second=92e12,  # [A1]; the clock gives 128 * 128 * 2 * 2.8e9 = 91.8e12
    fp32_flops_per_second=23e12,  # [A1]
)

TRN2 = Target(
    name="trn2",
    neuron_cores=8,  # [A2]
    num_partitions=128,  # [A2]
    stationary_free_max=128,  # [A2] as printed for its matmul tiles; the rule is [A1]'s
    moving_free_max=512,  # [A2]
    psum_banks=8,  # [A1]; [A2] calls PSUM unchanged
    psum_bank_bytes_per_partition=2 * KIB,  # [A1]; [A2] calls PSUM unchanged
    sbuf_bytes_per_partition=224 * KIB,  # [A2] 28 MiB
    psum_dtypes_of_matmul=("f32",),  # [A1] [A2]
    hbm_bytes=96 * GIB,  # [A2] [H2]
    hbm_bytes_per_second=2.9e12,  # [H2]; [A2] rounds it to 3 TB/s
    dma_engines=128,  # [A2]
    tensor_clock_hz=2.4e9,  # [A2]
    vector_clock_hz=0.96e9,  # [A2]
    scalar_clock_hz=1.2e9,  # [A2]
    gpsimd_clock_hz=1.2e9,  # [A2]
    # [A2] prints 79 and 20 TFLOPS; both are the array at its clock: 128 * 128 * 2 * 2.4e9, and a quarter of it. The
    # chip's peak in [H2], 667 TFLOPS, would need a clock that no other page gives.
    bf16_flops_per_second=78.6e12,
    fp32_flops_per_second=19.7e12,
)

TRN3 = Target(
    name="trn3",
    neuron_cores=8,  # [A3]
    num_partitions=128,  # [A3]
    stationary_free_max=128,  # [A3]
    moving_free_max=4096,  # [ISA] for an fp32 result, across banks; [A3] prints 512, one bank
    psum_banks=8,  # [A1]; [A3] calls PSUM unchanged
    psum_bank_bytes_per_partition=2 * KIB,  # [A1]; [A3] calls PSUM unchanged
    sbuf_bytes_per_partition=256 * KIB,  # [A3] 32 MiB
    psum_dtypes_of_matmul=("f32", "bf16"),  # [A3]
    hbm_bytes=144 * GIB,  # [A3] [H3]
    hbm_bytes_per_second=4.9e12,  # [H3]; [A3] says 4.7 TB/s
    dma_engines=128,  # [A3]
    tensor_clock_hz=2.4e9,  # [A3]
    vector_clock_hz=1.2e9,  # [A3]
    scalar_clock_hz=1.2e9,  # [A3]
    gpsimd_clock_hz=1.2e9,  # [A3]
    bf16_flops_per_second=78.6e12,  # [A3] prints 79 TFLOPS; the array at its clock
    fp32_flops_per_second=19.7e12,  # [A3] prints 20 TFLOPS; a quarter of bf16
)

TARGETS: Mapping[str, Target] = MappingProxyType({t.name: t for t in (TRN1, TRN2, TRN3)})


def by_name(name: str) -> Target:
    """The target called ``name``; raises OptionsError with the known names for another."""
    try:
        return TARGETS[name]
    except KeyError:
        raise OptionsError(f"target {name!r} is not known", hint=f"known: {', '.join(TARGETS)}") from None
