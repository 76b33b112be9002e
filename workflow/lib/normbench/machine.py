"""Verb ``machine``: the lasting facts of one GPU and of the software around it, as machine.json.

Facts come from NVML; the number of multiprocessors and the L2 size, which NVML does not tell, from attributes of the
CUDA driver, which need no context. Nothing that changes by itself (clocks, temperature, dates) is in the file, so it is
the same bytes as long as the machine is. A fact nobody tells is null, with the reason under ``notes``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from pathlib import Path
from typing import Any

from normbench import device, nvml, schema, sources
from normbench.device import Facts, Gpu

NO_FACT = "the driver gave no value"
FIELDS = schema.MACHINE


def describe(gpu: Gpu) -> Facts:
    """machine.json of one GPU: every name of FIELDS, in that order.

    Raises:
        NvmlMissing: NVML went away since the GPU was found.
    """
    gpu_facts, notes = _fake_facts(gpu.fake) if gpu.fake is not None else _real_facts(gpu)
    known = {
        **software(),
        **gpu_facts,
        "device": gpu.device,
        "gpu_name": gpu.name,
        "model": gpu.model,
        "arch": gpu.arch,
        "fake": gpu.fake is not None,
    }
    for name in FIELDS[:-1]:
        if known.get(name) is None:
            notes.setdefault(name, NO_FACT)
    return {name: known.get(name) for name in FIELDS[:-1]} | {"notes": dict(sorted(notes.items()))}


def software() -> Facts:
    """Versions of what compiles and runs the kernels, from package metadata; None where a package is absent."""
    nvrtc = sources.nvrtc_version()
    return {
        "nvrtc": ".".join(nvrtc.split(".")[:2]) if nvrtc else None,
        "torch": sources.version("torch"),
        "triton": sources.version("triton"),
        "cuda_core": sources.version("cuda-core"),
        "cuda_bindings": sources.version("cuda-bindings"),
        "python": platform.python_version(),
        "baselines": sources.baseline_versions(),
    }


def _fake_facts(values: Facts) -> tuple[Facts, dict[str, str]]:
    facts = {name: value for name, value in values.items() if name in FIELDS}
    clock, width = values.get("max_mem_clock_mhz"), values.get("memory_bus_bits")
    return {"theoretical_gbps": device.theoretical_gbps(clock, width), "mig": False, **facts}, {}


def _real_facts(gpu: Gpu) -> tuple[Facts, dict[str, str]]:
    query = nvml.Query(nvml.start())
    facts = _nvml_facts(query, gpu)
    attributes, notes = driver_attributes(gpu.uuid)
    return facts | attributes, query.notes | notes


def _nvml_facts(query: nvml.Query, gpu: Gpu) -> Facts:
    unit = query.ask("memory_bytes", "nvmlDeviceGetHandleByUUID", gpu.uuid)
    card = query.ask("memory_bus_bits", "nvmlDeviceGetHandleByUUID", gpu.parent)
    library = query.nvml
    facts: Facts = {
        "memory_bytes": query.ask("memory_bytes", "nvmlDeviceGetMemoryInfo", unit, take=lambda info: int(info.total)),
        "memory_bus_bits": query.ask("memory_bus_bits", "nvmlDeviceGetMemoryBusWidth", card),
        "max_sm_clock_mhz": query.ask("max_sm_clock_mhz", "nvmlDeviceGetMaxClockInfo", card, library.NVML_CLOCK_SM),
        "max_mem_clock_mhz": query.ask("max_mem_clock_mhz", "nvmlDeviceGetMaxClockInfo", card, library.NVML_CLOCK_MEM),
        "power_limit_w": query.ask(
            "power_limit_w", "nvmlDeviceGetPowerManagementLimit", card, take=lambda milliwatt: milliwatt / 1000
        ),
        "ecc": query.ask("ecc", "nvmlDeviceGetEccMode", card, take=lambda modes: bool(modes[0])),
        "mig": gpu.mig,
        "driver": query.ask("driver", "nvmlSystemGetDriverVersion"),
        "cuda_driver": query.ask("cuda_driver", "nvmlSystemGetCudaDriverVersion_v2", take=cuda_version),
    }
    facts["theoretical_gbps"] = device.theoretical_gbps(facts["max_mem_clock_mhz"], facts["memory_bus_bits"])
    if gpu.mig:
        facts["theoretical_gbps"] = None
        query.notes["theoretical_gbps"] = "NVML does not tell an instance's share of the memory bus"
    elif facts["theoretical_gbps"] is None:
        query.notes["theoretical_gbps"] = "needs the maximum memory clock and the width of the bus"
    return facts


def cuda_version(number: int) -> str:
    """13020 is 13.2."""
    return f"{number // 1000}.{number % 1000 // 10}"


def driver_attributes(uuid: str) -> tuple[Facts, dict[str, str]]:
    """sm_count and l2_bytes of the GPU with that UUID, by the CUDA driver and without a context.

    CUDA_VISIBLE_DEVICES of this process is set to the UUID, since CUDA may hide or renumber the GPU.
    """
    os.environ[device.VISIBLE] = uuid
    names = ("sm_count", "l2_bytes")
    try:
        from cuda.bindings import driver

        _checked(driver.cuInit(0))
        handle = _handle(driver, uuid)
        attribute = driver.CUdevice_attribute
        wanted = (
            attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE,
        )
        values = [int(_checked(driver.cuDeviceGetAttribute(each, handle))) for each in wanted]
    except (ImportError, RuntimeError) as error:
        return dict.fromkeys(names), dict.fromkeys(names, f"CUDA driver: {error}")
    return dict(zip(names, values, strict=True)), {}


def _handle(driver: Any, uuid: str) -> Any:
    digits = uuid.rpartition("GPU-" if "GPU-" in uuid else "MIG-")[2].partition("/")[0].replace("-", "").lower()
    for index in range(int(_checked(driver.cuDeviceGetCount()))):
        handle = _checked(driver.cuDeviceGet(index))
        if bytes(_checked(driver.cuDeviceGetUuid(handle)).bytes).hex() == digits:
            return handle
    raise RuntimeError(f"no CUDA device has the UUID {uuid}")


def _checked(result: tuple[Any, ...]) -> Any:
    """The value of a driver call.

    Raises:
        RuntimeError: the call failed; the message is the CUDA error's name.
    """
    error, *values = result
    if int(error) != 0:
        raise RuntimeError(error.name)
    return values[0] if values else None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", required=True, metavar="DEVICE", help="device id of a GPU of this host")
    parser.add_argument("--fleet", metavar="FILE", help="file of the fleet that --target is a name of")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")


def main(args: argparse.Namespace) -> int:
    facts = describe(_chosen(args.target, args.fleet))
    with schema.atomic(args.out) as temporary:
        temporary.write_text(json.dumps(facts, indent=1) + "\n")
    return 0


def _chosen(target: str, path: str | None) -> Gpu:
    if path is None:
        return device.find(target)
    from normbench import fleet

    return fleet.load(path)[target].pick(target, device.discover(os.environ.get(device.VISIBLE)))
