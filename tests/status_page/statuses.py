"""Statuses as the server gives them, for states that are hard to reach."""

import math
import time

HOSTILE = '<img src=x onerror=alert(1)>'

SETTINGS = {
    "aggregation": "sync", "min_pushes": "0", "max_lead": "4",
    "staleness": "keep", "max_staleness": "16", "normalization": "auto",
    "bn_statistics": "auto", "optimizer": "momentum", "learning_rate": "0.1",
    "momentum": "0.9", "weight_decay": "0.0005", "schedule": "cosine",
    "warmup_epochs": "0", "clip_norm": "0", "lease": "10s",
    "on_worker_loss": "wait", "checkpoint_every": "200",
}


def wobble(i):
    """Noise that is the same on every machine."""
    return math.sin(12.9898 * i) * math.cos(4.1414 * i * i)


def phases(rank=0, slow=1.0):
    unit = 0.01 * slow
    return {"data": 0.08 * unit, "forward": 1.9 * unit + 0.0004 * wobble(rank),
            "rendezvous": 0.35 * unit, "backward": 3.4 * unit,
            "push": 0.9 * unit, "wait": 0.02 / slow / slow}


def waits(count, mean=0):
    """The given number of waits, of the given seconds each."""
    return {"count": count, "total_seconds": count * mean}


def train_point(i, versions, version_max):
    share = i / max(versions - 1, 1)
    rate = 0.05 * (1 + math.cos(math.pi * share)) + 0.0001
    loss = 0.21 + 2.1 * math.exp(-5 * share) + 0.05 * wobble(i) * (1.2 - share)
    return {"version": round(version_max * share),
            "samples": round(125000 * (share + 0.0003 * wobble(i + 5))),
            "elapsed_seconds": 109.0 * share, "loss": loss,
            "accuracy": min(0.99, 0.93 - 0.82 * math.exp(-6 * share)
                            + 0.012 * wobble(i + 7)),
            "learning_rate": rate,
            "samples_per_second": 1150 + 60 * wobble(i + 3)}


def evaluation(epoch, version, statistics="sync"):
    worse = 0.0 if statistics == "sync" else 0.05
    return {"version": version, "data_epoch": epoch,
            "elapsed_seconds": 20.0 * epoch, "statistics": statistics,
            "loss": 0.29 + 0.5 / (epoch + 1) + 2 * worse,
            "accuracy": 0.918 - 0.22 / (epoch + 1) - worse, "miou": None}


def tested(point):
    """The fields of a status whose newest evaluation that is."""
    return {"test_version": point["version"], "test_loss": point["loss"],
            "test_accuracy": point["accuracy"], "test_miou": point["miou"]}


def worker(rank, activity="computing", description=None, **changes):
    return {"rank": rank, "state": "live", "activity": activity,
            "description": description or f"node-{rank:02d}, process {4100 + rank}",
            "incarnation": rank + 1, "batch_size": 64, "sequence": 1235,
            "lag_versions": 0, "staleness_versions": None,
            "silent_ms": 300, "last_arrivals": 600 + 7 * rank,
            "pushes": 1234, "cpu_cores": 1.5,
            "resident_bytes": (rank + 1) * 700_000_000,
            "transport": "shm",
            "phase_seconds": phases(rank), **changes}


def event(age_seconds, text, severity="info", rank=None):
    return {"unix_s": time.time() - age_seconds, "severity": severity,
            "rank": rank, "text": text}


def training(version=1234, workers=2):
    """Synchronous training, all well."""
    points = min(240, version)
    done = version / 4690
    return {
        "run_id": "ab12cd34ef567890", "run_name": "nightly",
        "build": "0.6.0 (commit 0d99786f2ac1)",
        "server_unix_us": 1e6 * time.time(), "uptime_seconds": 112.3,
        "address": "127.0.0.1:7070", "phase": "training",
        "state": f"training, {workers} of {workers} workers",
        "waited_for": [], "ended": False, "version": version, "attempt": 1,
        "data_epoch": int(5 * done), "epochs": 5,
        "samples": round(300000 * done), "samples_total": 300000,
        "samples_per_second": 1150.2,
        "eta_seconds": (1 - done) * 300000 / 1150.2,
        "policy": {"policy_epoch": 1, "text":
                   "sync, global normalisation, sync statistics, momentum",
                   "settings": dict(SETTINGS), "pending": {},
                   "pending_reason": "", "history": [
                       {"policy_epoch": 1, "version": 0, "samples": 0,
                        "text": "sync, global normalisation",
                        "settings": dict(SETTINGS)}]},
        "learning_rate": 0.083, "train_loss": 0.2317, "train_accuracy": 0.918,
        "gradient_norm": None,
        **tested(evaluation(0, version // 2)),
        "curves": {
            "train": [train_point(i, points, version) for i in range(points)],
            "test": [evaluation(0, version // 2)]},
        "workers_live": workers, "workers_expected": workers,
        "workers": [worker(rank) for rank in range(workers)],
        "push_verdicts": {
            "applied": 2 * version, "damped": 0, "dropped": 0, "duplicate": 0,
            "fenced": 0, "rejected_nonfinite": 0, "replay_mismatch": 0,
            "skipped": 0},
        "staleness_versions": {},
        "batch_norm": {
            "normalization": "global", "statistics": ["sync"],
            "folded": 3 * version, "damped": 0, "dropped": 0,
            "forward_waits": waits(6 * version, 0.00102),
            "backward_waits": waits(6 * version, 0.00071),
            "layers": [{"name": f"bn{i}", "channels": 32 * i,
                        "drift": 0.05 + 0.04 * i} for i in (1, 2, 3)]},
        "checkpoint": {"enabled": True, "version": version - version % 200,
                       "written_unix_s": time.time() - 3.1, "failures": 0},
        "events": [
            event(112, f"rank {workers - 1} joined as incarnation 2"),
            event(95, "rank 1 is lost at step 87: silent for 6 s",
                  severity="warning", rank=1),
            event(90, "rank 1: a replacement joined as incarnation 3",
                  rank=1)],
        "process": {"inflight_bytes": 3_400_000,
                    "inflight_bytes_max": 4 << 30,
                    "resident_bytes": 83_000_000, "cpu_seconds": 41.2,
                    "open_fds": 34},
    }


def empty():
    """A server without workers so far."""
    status = training(version=0)
    status.update(
        phase="waiting", waited_for=[0, 1],
        state="waiting for workers 0, 1 to join and register, no time limit",
        samples_per_second=0, eta_seconds=None, train_loss=None,
        train_accuracy=None, learning_rate=0.1, test_accuracy=None,
        workers_live=0, curves={"train": [], "test": []},
        push_verdicts={verdict: 0 for verdict in status["push_verdicts"]})
    status["workers"] = [
        worker(rank, activity="vacant", description=" ", incarnation=0,
               batch_size=0, sequence=0, lag_versions=None, silent_ms=None,
               last_arrivals=0, pushes=0, phase_seconds={}) for rank in (0, 1)]
    status["batch_norm"].update(folded=0, layers=[], forward_waits=waits(0),
                                backward_waits=waits(0))
    status["checkpoint"] = {"enabled": False, "version": None,
                            "written_unix_s": None, "failures": 0}
    return status


def waiting():
    """Four workers, of which one has died."""
    status = training(version=2345, workers=4)
    status.update(phase="waiting", waited_for=[3], workers_live=3,
                  state="waiting for a replacement of worker 3, 4.2 s, "
                  "gives up in 9 min 55 s", samples_per_second=402.0,
                  eta_seconds=None)
    status["workers"][3].update(activity="vacant", silent_ms=4200)
    return status


def elastic(live, state="training, elastic"):
    """A cohort of 2 to 4 workers, of which the first `live` are there."""
    status = training(workers=4)
    status.update(workers_min=2, workers_live=live, state=state,
                  phase="waiting" if "waiting" in state else "training")
    for one in status["workers"][live:]:
        one.update(worker(one["rank"], activity="vacant"))
    return status


def shard(number, **changes):
    return {"shard": number,
            "address": f"10.0.0.{number}:7070" if number else "",
            "connected": True,
            "since_unix_s": time.time() - 340 if number else None,
            "lost_because": "", "losses": 0, "generation": 7,
            "partitions": 33 - number, "weights_bytes": 34_000_000,
            "prepare_seconds": 0.0123 + 0.001 * number,
            "prepare_seconds_total": 15.2, "holdup_seconds_total": 0.4,
            **changes}


def sharded():
    """Three server processes, of which one is slow."""
    status = training(version=2345, workers=4)
    status["shards"] = [shard(0), shard(1),
                        shard(2, prepare_seconds=0.043, losses=1,
                              prepare_seconds_total=52.0,
                              holdup_seconds_total=31.2)]
    return status


def shard_lost():
    """The run waits for a server process."""
    status = sharded()
    status.update(phase="waiting", samples_per_second=0, eta_seconds=None,
                  workers_live=0,
                  state="waiting for data shard 1 at 10.0.0.1:7070, gone "
                  "for 12.3 s")
    status["shards"][1].update(
        connected=False, losses=2, since_unix_s=time.time() - 12.3,
        lost_because="data shard 1 at 10.0.0.1:7070: Socket closed")
    for one in status["workers"]:
        one.update(activity="vacant", incarnation=0, silent_ms=None)
    status["events"].append(
        event(12.3, "lost data shard 1 at 10.0.0.1:7070: Socket closed",
              severity="error"))
    return status


def finished():
    status = training(version=4690)
    status.update(phase="over", state="over: all 5 epochs are done",
                  ended=True, data_epoch=5, samples=300000, eta_seconds=0)
    tests = [evaluation(epoch, 938 * (epoch + 1)) for epoch in range(5)]
    status["curves"]["test"] = tests
    status.update(tested(tests[-1]))
    for of in status["workers"]:
        of.update(activity="finished", silent_ms=7500)
    return status


def drained():
    """Ended early, at a version without an evaluation."""
    status = training(version=3000)
    status.update(phase="over", state="over: drained", ended=True,
                  eta_seconds=None, samples_per_second=0)
    return status


def resumed():
    """Just continued from a checkpoint, without the files of before."""
    status = training(version=1200)
    status.update(uptime_seconds=1.0, samples_per_second=0, eta_seconds=None,
                  train_loss=None, test_accuracy=None,
                  curves={"train": [], "test": []})
    return status


def changed():
    """Switched to async and to another rate; a further change is pending."""
    status = training(version=3000, workers=4)
    policy = status["policy"]
    policy.update(
        policy_epoch=3, text="async, local normalisation, async statistics, "
        "staleness scale, momentum",
        pending={"aggregation": "sync", "normalization": "global"},
        pending_reason="waiting for the pushes of workers 0, 2",
        history=policy["history"] + [
            {"policy_epoch": 2, "version": 900, "samples": 57600,
             "text": "sync -> async, local normalisation",
             "settings": {"aggregation": "async", "normalization": "local",
                          "staleness": "scale"}},
            {"policy_epoch": 3, "version": 1800, "samples": 115200,
             "text": "learning_rate 0.1 -> 0.05",
             "settings": {"learning_rate": "0.05"}}])
    policy["settings"].update(aggregation="async", normalization="local")
    status["push_verdicts"].update(applied=8120, damped=1702, dropped=31,
                                   duplicate=4, rejected_nonfinite=2)
    status["batch_norm"]["normalization"] = "local"
    status["staleness_versions"] = {
        "0": 610, "1": 2511, "2": 3502, "3": 1704, "5": 121, "9": 12}
    tests = [evaluation(epoch, 938 * (epoch + 1), kind)
             for epoch in range(3) for kind in ("sync", "chief")]
    status["curves"]["test"] = tests
    status.update(tested(tests[-2]))
    for i, of in enumerate(status["workers"]):
        of.update(staleness_versions=i + 1, lag_versions=2 * i,
                  last_arrivals=0, phase_seconds=phases(i, 1 + 0.25 * i))
    return status


def segmentation():
    """Dense labels: mIoU counts."""
    status = training(version=2000, workers=4)
    tests = [dict(evaluation(epoch, 400 * (epoch + 1)),
                  miou=0.62 - 0.4 / (epoch + 1)) for epoch in range(5)]
    status["curves"]["test"] = tests
    status.update(tested(tests[-1]))
    return status


def crowd():
    """64 workers of which one is late, and a ResNet-50's 53 layers."""
    status = training(version=3100, workers=64)
    for of in status["workers"]:
        slow = 3.0 if of["rank"] == 41 else 1.0 + 0.1 * abs(wobble(of["rank"]))
        of.update(phase_seconds=phases(of["rank"], slow),
                  last_arrivals=2710 if of["rank"] == 41 else 6)
    status["slow_workers"] = [
        {"rank": 41, "own_seconds": 0.188, "median_seconds": 0.0659}]
    status["batch_norm"].update(forward_waits=waits(0),
                                backward_waits=waits(0))
    names = ["bn1"] + [f"layer{stage}.{block}.bn{i}"
                       for stage, blocks in ((1, 3), (2, 4), (3, 6), (4, 3))
                       for block in range(blocks) for i in (1, 2, 3)]
    names += [f"layer{stage}.0.downsample.1" for stage in (1, 2, 3, 4)]
    status["batch_norm"]["layers"] = [
        {"name": name, "channels": 256,
         "drift": 0.04 + 0.3 * abs(wobble(i + 1)) * (i / 53)}
        for i, name in enumerate(names)]
    return status


def hostile():
    """Every text that comes from outside tries to be markup."""
    status = changed()
    for of in status["workers"]:
        of.update(description=HOSTILE + "</script><script>alert(2)</script>",
                  activity=f"live{HOSTILE}")
    for layer in status["batch_norm"]["layers"]:
        layer["name"] = HOSTILE
    status.update(state=f"training {HOSTILE}", run_id=HOSTILE,
                  address=HOSTILE)
    status["policy"].update(text=HOSTILE, pending_reason=HOSTILE)
    status["policy"]["settings"][HOSTILE] = HOSTILE
    status["policy"]["history"][1]["settings"] = {HOSTILE: HOSTILE}
    status["push_verdicts"][HOSTILE] = 3
    status["build"] = HOSTILE
    status["events"][0]["text"] = HOSTILE
    return status


def wrecked():
    """Fields that are missing or unknown: the page must cope with both."""
    return {"run_id": "ab12", "server_unix_us": 1e6 * time.time(),
            "state": "training", "phase": "training", "ended": False,
            "version": 3, "workers": [{"rank": 0, "activity": "computing"}],
            "later": {"x": 1}}
