"""
From local studies and the archive to validated tables and pages, and a comparison of two archived runs.

INPUTS: results/<target>/ of finished studies, results/build/, reports/data/<device>/<run>/
OUTPUTS: results/tables/, reports/<device>.html, reports/index.html; on request results/compare.{txt,json}
    and reports/compare-<left>-<right>.html
"""


rule collect:
    """Check every finished study, local or archived, and join them into one table of each kind."""
    input:
        studies=expand("results/{target}/study.json", target=PLAN.targets),
        resources=PLAN.resources,
        asked=PLAN.asked,
        finished=checkout(PLAN.finished_files),
        code=checkout(known.imported("collect")),
    output:
        cases="results/tables/cases.parquet",
        showdown="results/tables/showdown.parquet",
        checks="results/tables/checks.parquet",
        ceilings="results/tables/ceilings.parquet",
        resources="results/tables/resources.parquet",
        audit="results/tables/audit.parquet",
        sanitize="results/tables/sanitize.parquet",
        profile="results/tables/profile.parquet",
        machines="results/tables/machines.json",
    log:
        "results/logs/collect.log",
    conda:
        "../../envs/report.yaml"
    resources:
        own_cores=OTHER_CORES,
    params:
        targets=PLAN.targets,
    shell:
        "normbench collect --target {params.targets} --out results/tables"
        " --own-cores {resources.own_cores} > {log} 2>&1"


rule page:
    """The report of one device, a single file that opens offline."""
    input:
        tables=rules.collect.output,
        kernels=checkout(PLAN.paths(PLAN.kernels)),
        code=checkout(known.imported("page")),
        drawing=checkout(known.modules(["charts/*.py", "templates/*"])),
    output:
        page=report(
            "reports/{device}.html",
            caption="../report/page.rst",
            category="Devices",
            labels={"device": "{device}"},
        ),
    log:
        "results/logs/page/{device}.log",
    conda:
        "../../envs/report.yaml"
    resources:
        own_cores=OTHER_CORES,
    params:
        title=PLAN.study.title,
    shell:
        "normbench page --device {wildcards.device} --tables results/tables --kernels kernels"
        " --title {params.title:q} --out {output.page}"
        " --own-cores {resources.own_cores} > {log} 2>&1"


rule index:
    """All devices on one page, grouped by model."""
    input:
        tables=rules.collect.output,
        code=checkout(known.imported("index")),
        drawing=checkout(known.modules(["templates/*"])),
    output:
        index=report(
            "reports/index.html",
            caption="../report/index.rst",
            category="All devices",
            labels={"device": "all"},
        ),
    log:
        "results/logs/index.log",
    conda:
        "../../envs/report.yaml"
    resources:
        own_cores=OTHER_CORES,
    params:
        title=PLAN.study.title,
    shell:
        "normbench index --tables results/tables --title {params.title:q} --out {output.index}"
        " --own-cores {resources.own_cores} > {log} 2>&1"


if {"left", "right"} <= config.keys():

    rule compare:
        """Judge one archived run against another; fails on a confirmed SLOWER or a newly wrong row."""
        input:
            left=PLAN.compared_files(config["left"]),
            right=PLAN.compared_files(config["right"]),
        log:
            # logs, unlike outputs, survive a verdict that fails the job
            text="results/compare.txt",
            json="results/compare.json",
            page=PLAN.comparison(config["left"], config["right"]),
        conda:
            "../../envs/report.yaml"
        params:
            left=config["left"],
            right=config["right"],
            title=PLAN.study.title,
        shell:
            "normbench compare {params.left:q} {params.right:q} --json {log.json} --html {log.page:q}"
            " --title {params.title:q} | tee {log.text}"
