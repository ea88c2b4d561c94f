"""What is timed: in cohort-measure, and of a server and its workers."""

import resource

from frame import BIN, Numbers, Processes, cpu_seconds, median, run

# Behind the frame, which says where it is.
from processes import certificates_of  # pylint: disable=C0411

# Before the clock counts: they map fresh memory, and fill queues.
WARM_UP_STEPS = 2
WARM_UP_ROUNDS = 200


def flags_of(values):
    return [f"--{name}={value}" for name, value in values.items()]


def measure(what, **flags):
    """What cohort-measure prints: name -> the numbers of its last line."""
    numbers = run(what, BIN / "cohort-measure", f"--what={what}",
                  *flags_of(flags))
    return {name: lines[-1] if len(lines[-1]) > 1 else lines[-1][0]
            for name, lines in numbers.items()}


def machine_steps(what, **flags):
    """Seconds of each step of cohort-measure, and CPU seconds of one."""
    numbers = run(what, BIN / "cohort-measure", f"--what={what}",
                  *flags_of(flags))
    return numbers.values("step"), numbers["cpu"][0][0]


def run_workers(options, local="tcp", encrypted=False, optimizer="sgd",
                wire="float32", **shape):
    """What worker 0 prints of a run of cohort-exchange-worker, and the CPU
    seconds of all. Server and workers are separate processes, as in use."""
    def certificates(role):
        return certificates_of(role) if encrypted else {}

    before = cpu_seconds(resource.RUSAGE_CHILDREN)
    numbers = Numbers()
    flags = [f"--workers={shape['workers']}", "--epochs=1",
             f"--optimizer={optimizer}", "--weight_decay=0"]
    # The program may be of a release without this flag.
    if wire != "float32":
        flags.append(f"--wire={wire}")
    with Processes() as processes:
        _, address = processes.start_server(
            *flags, command=[options.server_program or BIN / "cohort-server"],
            **certificates("server-0"))
        for rank in range(shape["workers"]):
            processes.start(
                f"worker {rank}",
                [BIN / "cohort-exchange-worker", f"--server={address}",
                 f"--rank={rank}", f"--local={local}", *flags_of(shape)],
                None if rank else numbers.add, **certificates("worker-any"))
        processes.wait()
    return numbers, cpu_seconds(resource.RUSAGE_CHILDREN) - before


def exchange_steps(options, workers, **served):
    """Seconds of each synchronous step in which all push their gradients to the
    server, which applies the optimizer and sends the weights back; and CPU
    seconds of all processes, with their start, by timed step. Workers do no
    arithmetic and do not copy the received weights."""
    numbers, cpu = run_workers(options, workers=workers,
                               elements=options.elements,
                               steps=options.steps + WARM_UP_STEPS, **served)
    return numbers.values("step")[WARM_UP_STEPS:], cpu / options.steps


def rendezvous_waits(options, workers=2, together=1, **served):
    """Seconds of each wait of worker 0 in a rendezvous of so many layers."""
    numbers, _ = run_workers(
        options, workers=workers, steps=1, channels=options.channels,
        calls=(options.rounds + WARM_UP_ROUNDS) * together, together=together,
        **served)
    return numbers.values("rendezvous")[WARM_UP_ROUNDS:]


def copy_seconds(options):
    """To copy the bytes of the exchange once in memory."""
    return median(machine_steps("copy", elements=options.elements,
                                rounds=options.steps)[0])
