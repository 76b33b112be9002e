# normbench: from kernels and a config to a report about this GPU beside the published ones.
# Everything written lies in results/ (disposable) or is reports/*.html; reports/data/ is the archive, no rule writes there.
#
#   snakemake --cores 1 report         measure the local GPU, if any, and build every page
#   snakemake --cores 1 measurements   only measure
#   snakemake --cores 1 verify         every contender on adversarial inputs
#   snakemake --cores 1 audit          a dozen points timed by NVBench and do_bench too
#   snakemake --cores 1 sanitize       every kernel under compute-sanitizer
#   snakemake --cores 1 profile        one launch of every kernel under Nsight Compute
#   snakemake --cores 2 cubins         every kernel for every architecture of the config, anywhere
#   snakemake --cores 1 compare --config left=DEVICE/RUN right=DEVICE/RUN
from snakemake.utils import min_version

min_version("9.25")


configfile: "config/config.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/build.smk"


if PLAN.targets:  # a GPU is visible: measure it, then show it beside the archive

    include: "workflow/rules/measure.smk"
    include: "workflow/rules/inspect.smk"


include: "workflow/rules/report.smk"


rule report:
    """The index and a page for every device, archived or local."""
    default_target: True
    input:
        index="reports/index.html",
        pages=expand("reports/{device}.html", device=PLAN.devices),


rule measurements:
    """Every race of every local GPU, without pages."""
    input:
        studies=local_studies,


rule verify:
    """Every contender of the study on adversarial inputs."""
    input:
        checks=local_checks,


rule audit:
    """What three timers say of the same launches; prints the largest difference."""
    input:
        tables=local_audits,
    log:
        "results/logs/audit.log",
    conda:
        "envs/report.yaml"
    shell:
        "normbench show {input.tables:q} | tee {log}"


rule sanitize:
    """Every kernel under compute-sanitizer; fails on findings, once all kernels have been run."""
    input:
        tables=local_sanitized,
    log:
        "results/logs/sanitize.log",
    conda:
        "envs/report.yaml"
    shell:
        "normbench show {input.tables:q} | tee {log}"


rule profile:
    """Every kernel's winner under Nsight Compute."""
    input:
        tables=local_profiles,
    log:
        "results/logs/profile.log",
    conda:
        "envs/report.yaml"
    shell:
        "normbench show {input.tables:q} | tee {log}"


rule cubins:
    """Every kernel compiled for every architecture of the config; needs neither GPU nor driver."""
    input:
        builds=expand(
            "results/build/{arch}/{kernel}.json", arch=PLAN.archs, kernel=PLAN.compiled
        ),
