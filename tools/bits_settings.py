"""The settings of the probes of `make bits`: what is run, in words that the reference commit knows."""

from __future__ import annotations

from typing import Any

Settings = dict[str, Any]

METHODS = """
    asgd asynccurve ca2fl dc-asgd fadas fedac fedadagrad fedadam fedasam fedasync fedavg fedavgm fedbabu fedbuff
    feddyn fedecho fednova fedntd fedogd fedprox fedsam fedsol fedyogi flanp gradma hfl knn-per local-only mifa moon
    orthocorrect orthodyn orthofl orthograd orthopos orthostrict perfedavg safa scaffold tifl twafl
"""
#: methods at settings other than their defaults: those of tests/laws/variants.py at the reference commit
VARIANTS = """
    fedavg:weighting=uniform
    fedasync:staleness=constant
    fedasync:staleness=hinge,a=1.0,b=1.0
    fedasync:mu=0.5
    fedbuff:buffer=3
    orthofl:projection=full
    orthofl:projection=none
    orthofl:placement=client
    orthofl:placement=hybrid
    orthofl:ablation=no-calibration
    orthofl:ablation=no-average
    orthofl:ablation=pairwise
    orthofl:state=reference
    fedogd:projection=always
    fedogd:cache=false
    fedogd:groups=announced,weighting=clients
    fedogd:privacy=true
    fedsol:part=all
    fedsol:part=all,adaptive=false,rho=0.1
    fedsol:proximal=l2
    fedsol:strategy=A4,part=body,norm=dim0,rho=0.1
    fedsol:strategy=projection
    fedsol:proximal=ntd,rho=0.5
    fedsol:proximal=moon,part=all,adaptive=false,rho=0.1
    fedecho:buffer=2,lr=0.01,q=3,batch=20
    orthodyn:statistic=ratio,switch=0.1
    orthodyn:statistic=progress,middle=0.2
    asynccurve:optimiser=asam,proximal=l2,swa=0.2,cycle=2,periodic=4
    asynccurve:optimiser=sgd,lr=0.05,curve=line,correction=orthopos
    ca2fl:buffer=3
    mifa:no_wait=true
    mifa:epoch=1.5
    safa:fraction=0.3,lag=1
    safa:fraction=1.0,limit=2.0
    fedavgm:nesterov=true,eta=0.5
    fadas:buffer=2,delay=scaled,eta=0.02
    gradma:memory=2,projection=layer
    gradma:side=server,beta2=0.0
    gradma:side=worker
    fednova:mu=0.5,weighting=uniform
    perfedavg:form=hf,alpha=0.1,weighting=uniform
    scaffold:option=I,weighting=examples,eta=0.7
    feddyn:alpha=0.5
    fedac:buffer=2,adaptive=false,eta=0.7
    fedac:buffer=3,correction=false,eta=0.01
    twafl:a=1.0
    hfl:lam=1.0,h=3.0,epoch=1.5
    tifl:tiers=2,interval=2,credits=3
    tifl:tiers=3,policy=fast2
    flanp:n0=3,c=100.0
"""
#: parts of several methods in one run, and runs with more settings
CROSSES: dict[str, Settings] = {
    "local": {"method": "orthofl", "local": "fedsol:rho=1.0"},
    "correct": {"method": "fedasync", "correct": "orthocorrect"},
    "aggregate": {"method": "orthofl", "aggregate": "fedbuff:buffer=3"},
    "step": {"method": "fedbuff:buffer=3", "step": "fedadam"},
    "reply": {"method": "fedasync", "reply": "orthofl"},
    "distil": {"method": "fedbuff:buffer=3", "distil": "fedecho"},
    "manifold": {"method": "fedasync", "local": "asynccurve", "manifold": "bezier"},
    "two-parts": {"method": "fedbuff:buffer=3", "correct": "orthofl", "step": "fedadam", "local": "moon"},
    "diagnose": {"method": "orthofl", "diagnose": True},
    "diagnose-fedbuff": {"method": "fedbuff:buffer=3", "diagnose": True},
    "adamw": {"method": "fedavg", "optimiser": "adamw", "lr": 0.01, "weight_decay": 0.01, "lr_decay": 0.98},
    "momentum": {"method": "fedasync", "momentum": 0.9, "batch": "all"},
    "float64": {"method": "fedasync", "dtype": "float64", "lookahead": 3, "workers": 2},
    **{f"personalise-{m}": {"method": m, "personalise": 2} for m in ("fedavg", "fedbabu", "knn-per", "perfedavg")},
    "personalise-local-only": {"method": "local-only", "personalise": 1},
}
EXECUTORS: dict[str, Settings] = {
    "inline": {"executor": "inline"},
    "pool": {"executor": "pool", "workers": 2},
    "batched": {"executor": "batched"},
}
#: vectors long enough for the kernels of numba and for buffers that are used again
LARGE: Settings = {
    "task": "digits:hidden=8000,limit=120",
    "clients": 6,
    "delay": [[1.0], [1.0, 2.0], [2.0], [0.5, 3.0], [1.5], [4.0]],
    "steps": 2,
    "batch": 8,
    "updates": 10,
    "eval_every": 10.0,
}
#: other models. `own` is a task made in Python: running statistics and dropout. A batched executor times several ways
#: to train; a name that ends in `last-way` takes the last of them (convolutions by numba), another one the first.
MODELS: dict[str, Settings] = {
    "cnn": {"method": "orthofl", "task": "digits:limit=120,model=cnn"},
    "cnn-last-way": {"method": "fedavg", "task": "digits:limit=120,model=cnn", "executor": "batched"},
    "resnet18": {"method": "fedasync", "task": "digits:limit=60,model=resnet18,norm=batch,width=4"},
    "cnn-batched": {
        "method": "fedbuff:buffer=3",
        "task": "digits:limit=120,model=cnn",
        "executor": "batched",
        "batch": 16,
    },
    "own": {"method": "fedavg", "task": "own"},
    "own-pool": {"method": "safa", "task": "own", "executor": "pool", "workers": 2},
    **{
        f"own-{executor}-{method}": {"method": method, "task": "own", "executor": executor}
        for executor in ("inline", "batched")
        for method in ("fedasync", "fedbuff:buffer=3", "orthofl", "fedsol", "scaffold", "asynccurve", "fedavgm", "mifa")
    },
}
RESUMED = """
    fedbuff:buffer=3 orthofl orthofl:placement=hybrid fedecho fedogd safa scaffold asynccurve ca2fl fadas:buffer=2
    tifl:tiers=2,interval=2,credits=3 flanp mifa gradma fedac:buffer=2 hfl local-only fedsol
"""
REPLAYED = """
    fedasync fedbuff:buffer=3 orthofl orthofl:placement=client ca2fl:buffer=2 mifa scaffold fedogd safa
    tifl:tiers=2 fedecho moon
"""

#: six unequal clients
SMALL: Settings = {
    "task": "digits:hidden=8,limit=240",
    "clients": 6,
    "delay": "orthofl-rpi",
    "epochs": 1,
    "batch": 8,
    "updates": 40,
    "failure_rate": 0.1,
    "eval_every": 2000.0,
}
#: several arrivals at one instant, four clients at a time, two of them come and go, visits fail
EVERYTHING: Settings = {
    "task": "digits:hidden=8,limit=300",
    "clients": 6,
    "concurrency": 4,
    "delay": [[1.0], [1.0, 2.0], [2.0], [0.5, 3.0], [1.5, 1.0], [4.0, 0.5, 0.5]],
    "failure_rate": 0.15,
    "presence": {"1": [[0.0, 7.25]], "4": [[3.0, 11.0], [13.0, 16.0]]},
    "steps": 2,
    "batch": 8,
    "lr": 0.05,
    "time": 20.0,
    "eval_every": 3.0,
    "seed": 5,
}
