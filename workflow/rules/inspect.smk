"""
What other people's tools say of this host's measurements and kernels: other timers, compute-sanitizer, Nsight Compute.
Included where measure.smk is; no part of `report`, which shows what is there.

INPUTS: what measure.smk makes: results/<target>/{machine.json,ceilings.parquet}, results/<target>/cases/<kernel>.parquet;
    results/sweep.json, kernels/, the modules that define what is run under a tool and how it is read
OUTPUTS: results/<target>/audit/<op>.parquet, results/<target>/sanitize/<kernel>.parquet,
    results/<target>/profile/<kernel>.parquet

A tool that is missing is a row with its reason. A rule fails only where it cannot make its table; what a table says is
judged by the target of the same name, once all tables are there.
"""


rule audit_op:
    """A dozen points of the study timed by our own clock, by NVBench and by Triton's do_bench, launch for launch."""
    input:
        kernels=race_kernels,
        builds=race_builds,
        cases=race_cases,
        machine="results/{target}/machine.json",
        sweep="results/sweep.json",
        code=checkout(known.measuring()),
        methods=checkout(known.auditing()),
    output:
        audit="results/{target}/audit/{op}.parquet",
    log:
        "results/logs/audit/{target}/{op}.log",
    group:
        "measure_{target}"
    conda:
        "../../envs/gpu.yaml"
    threads: MEASURING_THREADS
    resources:
        **PLAN.claims,
        gpu=1,
        own_cores=MEASURING_CORES,
    params:
        versions=PLAN.versions,
        timers=PLAN.timers,
        points=PLAN.audited,
    shell:
        "normbench audit --target {wildcards.target} --op {wildcards.op} --kernels {input.kernels:q}"
        " --builds {input.builds} --cases {input.cases} --count {params.points} --sweep {input.sweep}"
        " --machine {input.machine} --out {output.audit}"
        " --own-cores {resources.own_cores} > {log} 2>&1"


rule sanitize_kernel:
    """One kernel under memcheck, racecheck, initcheck and synccheck, on small odd shapes in all types."""
    input:
        kernel=kernel_file,
        headers=kernel_headers,
        machine="results/{target}/machine.json",
        sweep="results/sweep.json",
        code=checkout(known.sanitizing()),
    output:
        sanitize="results/{target}/sanitize/{kernel}.parquet",
    log:
        "results/logs/sanitize/{target}/{kernel}.log",
    group:
        "measure_{target}"
    conda:
        "../../envs/gpu.yaml"
    threads: MEASURING_THREADS
    resources:
        **PLAN.claims,
        gpu=1,
        own_cores=MEASURING_CORES,
    params:
        versions=PLAN.versions,
        tool=PLAN.tool("compute-sanitizer"),
    shell:
        "normbench sanitize --target {wildcards.target} --contender {input.kernel:q} --sweep {input.sweep}"
        " --machine {input.machine} --out {output.sanitize}"
        " --own-cores {resources.own_cores} > {log} 2>&1"


rule profile_kernel:
    """One launch of a kernel's winner under Nsight Compute: bytes moved, widths, occupancy, what warps wait for."""
    input:
        kernel=kernel_file,
        headers=kernel_headers,
        cases="results/{target}/cases/{kernel}.parquet",
        machine="results/{target}/machine.json",
        sweep="results/sweep.json",
        code=checkout(known.profiling()),
    output:
        profile="results/{target}/profile/{kernel}.parquet",
    log:
        "results/logs/profile/{target}/{kernel}.log",
    group:
        "measure_{target}"
    conda:
        "../../envs/gpu.yaml"
    threads: MEASURING_THREADS
    resources:
        **PLAN.claims,
        gpu=1,
        own_cores=MEASURING_CORES,
    params:
        versions=PLAN.versions,
        tool=PLAN.tool("ncu"),
        dtype=PLAN.study.profile.dtype,
        hidden=PLAN.study.profile.hidden,
    shell:
        "normbench profile --target {wildcards.target} --kernel {input.kernel:q} --cases {input.cases}"
        " --dtype {params.dtype} --hidden {params.hidden} --sweep {input.sweep} --machine {input.machine}"
        " --out {output.profile}"
        " --own-cores {resources.own_cores} > {log} 2>&1"
