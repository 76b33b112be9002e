"""
What all rules share: the plan of the study, wildcards that can only be things that exist, and how a verb is called.

INPUTS: the config (checked here), kernels/, reports/data/, results/*/study.json, NVML
OUTPUTS: none; parsing makes no CUDA context, imports no torch and writes nothing
"""

import shlex
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.io import sourcecache_entry
from snakemake_interface_executor_plugins.settings import DeploymentMethod

# this checkout's package and no other, even where another one is installed
LIBRARY = Path(workflow.basedir) / "workflow" / "lib"
sys.path.insert(0, str(LIBRARY))

from normbench import (
    parse as known,
)  # the bare name would replace the `parse` of Snakemake itself

try:
    PLAN = known.plan(config, workflow.global_resources)
except ValueError as error:
    sys.exit(f"normbench: {error}")

# A job calls `normbench <verb>` with the Python that runs Snakemake, or with that of its conda environment.
# It is a shell function, so that the path of an interpreter is no part of a rule and cannot trigger a job.
# (Snakemake formats a prefix, and so does Python: hence four braces for one.)
DEPLOYED = DeploymentMethod.CONDA in workflow.deployment_settings.deployment_method
PYTHON = "python" if DEPLOYED else shlex.quote(sys.executable)
# Slurm counts GPUs in the order of the bus, CUDA does not unless told
ORDER = "export CUDA_DEVICE_ORDER=PCI_BUS_ID; " if PLAN.fleet else ""
shell.prefix(
    f"set -euo pipefail; {ORDER}export PYTHONPATH={shlex.quote(str(LIBRARY))}${{{{PYTHONPATH:+:$PYTHONPATH}}}}; "
    f'normbench() {{{{ {PYTHON} -m normbench "$@"; }}}}; '
)

# a measurement takes its share of all cores, so that nothing compiles or draws beside it
MEASURING_THREADS = PLAN.threads(workflow.resource_settings.cores)

# What `warm` compiles is not timed, so kernels may compile beside it; its own processes are as many as there are cores.
WARMING_THREADS = (
    MEASURING_THREADS
    if PLAN.slots > 1 or PLAN.fleet
    else max(1, MEASURING_THREADS // 2)
)

# Where several GPUs are measured, jobs run side by side: each keeps to as many cores as it has threads (0: to none).
# These are resources because, unlike parameters, they trigger nothing.
MEASURING_CORES = MEASURING_THREADS if PLAN.slots > 1 else 0
OTHER_CORES = 1 if PLAN.slots > 1 else 0
for chip in PLAN.chips:
    workflow.register_resource(chip, 1)
if (
    PLAN.fleet
):  # what is submitted for a target has one GPU, so its jobs run one after the other
    workflow.register_resource("gpu", 1)


# the limit above holds within what is submitted, not over all of it
resource_scopes:
    gpu="local",


# cheap, and wanted where the results are; everything else may run anywhere
localrules:
    sweep,
    collect,
    page,
    index,
    audit,
    sanitize,
    profile,


wildcard_constraints:
    arch=known.names(PLAN.known_archs),
    contender=known.names([*PLAN.measured, *PLAN.baselines]),
    device=known.names(PLAN.devices),
    kernel=known.names(PLAN.kernels),
    op=known.names(PLAN.study.ops),
    target=known.names(PLAN.targets),


def machine_arguments(wildcards):
    fleet = ["--fleet", PLAN.fleet_file] if PLAN.fleet else []
    return shlex.join(["--target", wildcards.target, *fleet])


def checkout(paths):
    """Sources and the archive, which every host has in its checkout, wherever results are stored.

    Where results go to a storage they are flagged as what `workflow.source_path` gives: a job with an input flagged
    `local` would stay on the submitting host, and measure there.
    """
    if workflow.storage_settings.default_storage_provider is None:
        return paths
    if isinstance(paths, str):
        return sourcecache_entry(paths, paths)
    return [sourcecache_entry(path, path) for path in paths]


def kernel_file(wildcards):
    return checkout(str(PLAN.kernels[wildcards.kernel].path))


def kernel_headers(wildcards):
    return checkout(PLAN.headers(wildcards.kernel))


def kernel_build(wildcards):
    return PLAN.builds(wildcards.target, [wildcards.kernel])


def race_kernels(wildcards):
    return checkout(PLAN.paths(PLAN.racers(wildcards.op)))


def race_builds(wildcards):
    return PLAN.builds(wildcards.target, PLAN.racers(wildcards.op))


def race_cases(wildcards):
    return expand(
        "results/{target}/cases/{kernel}.parquet",
        target=wildcards.target,
        kernel=PLAN.racers(wildcards.op),
    )


def contender_file(wildcards):
    return checkout(PLAN.paths([wildcards.contender]))


def contender_build(wildcards):
    return PLAN.builds(wildcards.target, [wildcards.contender])


def study_tables(wildcards):
    cases = expand(
        "results/{target}/cases/{kernel}.parquet",
        target=wildcards.target,
        kernel=PLAN.measured,
    )
    races = expand(
        "results/{target}/showdown/{op}.parquet",
        target=wildcards.target,
        op=PLAN.study.ops,
    )
    return cases + races


def local_studies(wildcards):
    return expand("results/{target}/study.json", target=measurable())


def local_checks(wildcards):
    return expand(
        "results/{target}/checks/{contender}.parquet",
        target=measurable(),
        contender=[*PLAN.measured, *PLAN.baselines],
    )


def local_audits(wildcards):
    return expand(
        "results/{target}/audit/{op}.parquet",
        target=measurable(),
        op=PLAN.study.ops,
    )


def local_sanitized(wildcards):
    return expand(
        "results/{target}/sanitize/{kernel}.parquet",
        target=measurable(),
        kernel=PLAN.measured,
    )


def local_profiles(wildcards):
    return expand(
        "results/{target}/profile/{kernel}.parquet",
        target=measurable(),
        kernel=PLAN.measured,
    )


def measurable():
    if not PLAN.targets:
        raise WorkflowError(
            "no GPU is visible here, so nothing can be measured; `normbench doctor` says why"
        )
    return PLAN.targets
