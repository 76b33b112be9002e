"""
What all rules share: the plan of the study, wildcards that can only be things that exist, and how a verb is called.

INPUTS: the config (checked here), kernels/, reports/data/, results/*/study.json, NVML
OUTPUTS: none; parsing makes no CUDA context, imports no torch and writes nothing
"""

import shlex
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError
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
shell.prefix(
    f"set -euo pipefail; export PYTHONPATH={shlex.quote(str(LIBRARY))}${{{{PYTHONPATH:+:$PYTHONPATH}}}}; "
    f'normbench() {{{{ {PYTHON} -m normbench "$@"; }}}}; '
)

# a measurement takes its share of all cores, so that nothing compiles or draws beside it
MEASURING_THREADS = max(1, (workflow.resource_settings.cores or 1) // PLAN.slots)


wildcard_constraints:
    arch=known.names(PLAN.known_archs),
    contender=known.names([*PLAN.measured, *PLAN.baselines]),
    device=known.names(PLAN.devices),
    kernel=known.names(PLAN.kernels),
    op=known.names(PLAN.study.ops),
    target=known.names(PLAN.targets),


def kernel_file(wildcards):
    return str(PLAN.kernels[wildcards.kernel].path)


def kernel_headers(wildcards):
    return PLAN.headers(wildcards.kernel)


def kernel_build(wildcards):
    return PLAN.builds(wildcards.target, [wildcards.kernel])


def race_kernels(wildcards):
    return PLAN.paths(PLAN.racers(wildcards.op))


def race_builds(wildcards):
    return PLAN.builds(wildcards.target, PLAN.racers(wildcards.op))


def race_cases(wildcards):
    return expand(
        "results/{target}/cases/{kernel}.parquet",
        target=wildcards.target,
        kernel=PLAN.racers(wildcards.op),
    )


def contender_file(wildcards):
    return PLAN.paths([wildcards.contender])


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


def measurable():
    if not PLAN.targets:
        raise WorkflowError(
            "no GPU is visible here, so nothing can be measured; `normbench doctor` says why"
        )
    return PLAN.targets
