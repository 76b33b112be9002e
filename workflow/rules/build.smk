"""
From the config and the kernel sources to points and cubins; needs neither GPU nor driver.

INPUTS: kernels/*/*.cu with the headers they include, kernels/triton/*.py
OUTPUTS: results/sweep.json, results/build/<arch>/<kernel>.{cubin,json,parquet}
"""


rule sweep:
    """The points of the study, in one order however the config is written."""
    input:
        code=checkout(known.modules(["points.py", "sweep.py"])),
    output:
        sweep="results/sweep.json",
    log:
        "results/logs/sweep.log",
    conda:
        "../../envs/report.yaml"
    params:
        study=known.parameter(PLAN.study.measured()),
    shell:
        "normbench sweep --study {params.study:q} --out {output.sweep} > {log} 2>&1"


rule compile:
    """One kernel file for one architecture: every variant, what each costs, and the names they go by."""
    input:
        kernel=kernel_file,
        headers=kernel_headers,
        code=checkout(known.modules(known.COMPILING)),
    output:
        cubin="results/build/{arch}/{kernel}.cubin",
        lowered="results/build/{arch}/{kernel}.json",
        resources="results/build/{arch}/{kernel}.parquet",
    log:
        "results/logs/compile/{arch}/{kernel}.log",
    # before anything is timed
    priority: 2
    conda:
        "../../envs/gpu.yaml"
    resources:
        own_cores=OTHER_CORES,
    params:
        blocks=known.parameter(PLAN.study.block),
        residual=PLAN.study.residual,
        cast=PLAN.study.cast,
        offset=PLAN.study.gamma_offset,
        nvrtc=PLAN.nvrtc,
    shell:
        "normbench compile {input.kernel:q} --arch {wildcards.arch} --block {params.blocks:q}"
        " --residual {params.residual} --cast {params.cast} --offset {params.offset}"
        " --out {output.lowered}"
        " --own-cores {resources.own_cores} > {log} 2>&1"
