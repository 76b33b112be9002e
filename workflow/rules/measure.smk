"""
Measures this host's GPUs; included only where there is one. A target is the device id of such a GPU.

INPUTS: results/sweep.json, results/build/<arch>/, kernels/, the modules that define what a number means
OUTPUTS: results/<target>/{machine.json,ceilings.parquet,warm.json,study.json}, results/<target>/cases/<kernel>.parquet,
    results/<target>/showdown/<op>.parquet, and for `verify` results/<target>/checks/<contender>.parquet

Each rule takes every core, or its share where several GPUs are measured, so that nothing runs beside a measurement on
the same cores; no two jobs of one target run at a time.
"""


localrules:
    record,


rule machine:
    """Lasting facts of the GPU and of the software, as far as NVML and the driver tell them."""
    input:
        code=checkout(known.modules(["device.py", "machine.py", "nvml.py"])),
    output:
        machine="results/{target}/machine.json",
    log:
        "results/logs/machine/{target}.log",
    group:
        "measure_{target}"
    conda:
        "../../envs/gpu.yaml"
    resources:
        **PLAN.claims,
        gpu=1,
        own_cores=OTHER_CORES,
    params:
        versions=PLAN.versions,
        target=machine_arguments,
    shell:
        "normbench machine {params.target} --out {output.machine}"
        " --own-cores {resources.own_cores} > {log} 2>&1"


rule ceilings:
    """The roofs the GPU reaches: bandwidth by access mix and size, empty launch, fp32 rate."""
    input:
        machine="results/{target}/machine.json",
        sweep="results/sweep.json",
        code=checkout(known.measuring()),
    output:
        ceilings="results/{target}/ceilings.parquet",
    log:
        "results/logs/ceilings/{target}.log",
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
    shell:
        "normbench ceilings --target {wildcards.target} --machine {input.machine} --sweep {input.sweep}"
        " --out {output.ceilings}"
        " --own-cores {resources.own_cores} > {log} 2>&1"


rule warm:
    """What compiles at its first call (Triton kernels, JIT baselines), compiled before anything is timed."""
    input:
        machine="results/{target}/machine.json",
        sweep="results/sweep.json",
        kernels=checkout(PLAN.paths(PLAN.triton)),
        baselines=checkout(PLAN.paths(PLAN.baselines)),
    output:
        warm="results/{target}/warm.json",
    log:
        "results/logs/warm/{target}.log",
    # before `measure`, which does not take it as an input: what another kernel compiled changes none of its numbers;
    # `ancient` would say so, but in Snakemake 9.27 it hides other reasons to run what stands behind it
    priority: 1
    group:
        "measure_{target}"
    conda:
        "../../envs/gpu.yaml"
    threads: WARMING_THREADS
    resources:
        **PLAN.claims,
        gpu=1,
        own_cores=MEASURING_CORES,
    params:
        versions=PLAN.versions,
    shell:
        "normbench warm --target {wildcards.target} --kernels {input.kernels:q} --baselines {input.baselines}"
        " --machine {input.machine} --sweep {input.sweep} --out {output.warm}"
        " --own-cores {resources.own_cores} > {log} 2>&1"


rule measure:
    """Tune one kernel: check, then time, every variant at every point, in one process."""
    input:
        kernel=kernel_file,
        build=kernel_build,
        machine="results/{target}/machine.json",
        sweep="results/sweep.json",
        ceilings="results/{target}/ceilings.parquet",
        code=checkout(known.measuring()),
    output:
        cases="results/{target}/cases/{kernel}.parquet",
    log:
        "results/logs/measure/{target}/{kernel}.log",
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
    shell:
        "normbench measure --target {wildcards.target} --kernel {input.kernel:q} --build {input.build}"
        " --sweep {input.sweep} --machine {input.machine} --ceilings {input.ceilings} --out {output.cases}"
        " --own-cores {resources.own_cores} > {log} 2>&1"


rule showdown:
    """Race one op: each kernel's best variant and every baseline, interleaved in one process on fresh samples."""
    input:
        kernels=race_kernels,
        builds=race_builds,
        cases=race_cases,
        baselines=checkout(PLAN.paths(PLAN.baselines)),
        guests=checkout(PLAN.guest_files),
        machine="results/{target}/machine.json",
        sweep="results/sweep.json",
        ceilings="results/{target}/ceilings.parquet",
        warm="results/{target}/warm.json",
        code=checkout(known.measuring()),
    output:
        showdown="results/{target}/showdown/{op}.parquet",
    log:
        "results/logs/showdown/{target}/{op}.log",
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
        baselines=[*PLAN.baselines, *PLAN.guests],
    shell:
        "normbench showdown --target {wildcards.target} --op {wildcards.op} --kernels {input.kernels:q}"
        " --builds {input.builds} --cases {input.cases} --baselines {params.baselines:q} --sweep {input.sweep}"
        " --machine {input.machine} --ceilings {input.ceilings} --warm {input.warm} --out {output.showdown}"
        " --own-cores {resources.own_cores} > {log} 2>&1"


rule verify_contender:
    """One contender on adversarial inputs."""
    input:
        contender=contender_file,
        build=contender_build,
        machine="results/{target}/machine.json",
        sweep="results/sweep.json",
        code=checkout(known.measuring()),
        inputs=checkout(known.verifying()),
    output:
        checks="results/{target}/checks/{contender}.parquet",
    log:
        "results/logs/verify/{target}/{contender}.log",
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
    shell:
        "normbench verify --target {wildcards.target} --contender {input.contender:q} --build {input.build}"
        " --sweep {input.sweep} --machine {input.machine} --out {output.checks}"
        " --own-cores {resources.own_cores} > {log} 2>&1"


rule record:
    """Close a study: keep the sweep beside the tables that answer it."""
    input:
        sweep="results/sweep.json",
        machine="results/{target}/machine.json",
        tables=study_tables,
    output:
        study="results/{target}/study.json",
    log:
        "results/logs/record/{target}.log",
    conda:
        "../../envs/report.yaml"
    shell:
        "cp {input.sweep} {output.study} > {log} 2>&1"
