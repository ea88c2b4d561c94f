"""Asynchronous training of `cnn` by TensorFlow's ParameterServerStrategy, as a
contender of ddp_bench.py.

  python3 tests/bench/tensorflow_training.py --workers=2

Starts a parameter server and the workers as separate processes, schedules
the steps from this one, and prints images/s and CPU seconds for 1,000 images of
the epochs after the first. Sizes of network, batches and evaluation and the
optimizer are those of ddp_bench.py. Needs TensorFlow.
"""

import argparse
import json
import os
import subprocess
import sys
import time

from frame import cpu_of

# Behind the frame, which says where it is.
from ports import named_ports  # pylint: disable=C0411

CLASSES, TEST_IMAGES = 10, 512
CHANNELS = ((1, 32), (32, 64), (64, 128))


def resolver():
    """What TF_CONFIG says."""
    # pylint: disable=import-outside-toplevel
    import tensorflow as tf
    return tf.distribute.cluster_resolver.TFConfigClusterResolver()


def serve():
    """A parameter server or worker; it is ended from outside."""
    # pylint: disable=import-outside-toplevel
    import tensorflow as tf
    of = resolver()
    tf.distribute.Server(of.cluster_spec(), job_name=of.task_type,
                         task_index=of.task_id, protocol="grpc").join()


class Network:
    """`cnn` with SGD and momentum on variables of the parameter server."""

    def __init__(self, tf):
        self._tf = tf
        normal = tf.random.stateless_normal
        self._stages = [
            {"weight": tf.Variable(0.1 * normal((3, 3, *of), (1, 1))),
             "scale": tf.Variable(tf.ones(of[1])),
             "offset": tf.Variable(tf.zeros(of[1])),
             "mean": tf.Variable(tf.zeros(of[1]), trainable=False),
             "variance": tf.Variable(tf.ones(of[1]), trainable=False)}
            for of in CHANNELS]
        self._weight = tf.Variable(
            0.1 * normal((CHANNELS[-1][1], CLASSES), (1, 1)))
        self._bias = tf.Variable(tf.zeros(CLASSES))
        self._parameters = [
            stage[name] for stage in self._stages
            for name in ("weight", "scale", "offset")]
        self._parameters += [self._weight, self._bias]
        self._velocities = [
            tf.Variable(tf.zeros(parameter.shape), trainable=False)
            for parameter in self._parameters]

    def logits(self, x, training):
        """The result for a batch, and the batch statistics."""
        tf = self._tf
        statistics = []
        for number, stage in enumerate(self._stages):
            if number > 0:
                x = tf.nn.max_pool2d(x, 2, 2, "VALID")
            x = tf.nn.conv2d(x, stage["weight"], 1, "SAME")
            moving = {} if training else {"mean": stage["mean"],
                                          "variance": stage["variance"]}
            x, mean, variance = tf.compat.v1.nn.fused_batch_norm(
                x, stage["scale"], stage["offset"], is_training=training,
                **moving)
            statistics.append((mean, variance))
            x = tf.nn.relu(x)
        x = tf.reduce_mean(x, (1, 2))
        return tf.matmul(x, self._weight) + self._bias, statistics

    def step(self, x, y):
        """One asynchronous step."""
        tf = self._tf
        with tf.GradientTape() as tape:
            logits, statistics = self.logits(x, training=True)
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        gradients = tape.gradient(loss, self._parameters)
        for parameter, velocity, gradient in zip(
                self._parameters, self._velocities, gradients):
            tf.raw_ops.ResourceApplyMomentum(
                var=parameter.handle, accum=velocity.handle, lr=0.01,
                grad=gradient + 5e-4 * parameter, momentum=0.9)
        for stage, (mean, variance) in zip(self._stages, statistics):
            stage["mean"].assign_add(0.1 * (mean - stage["mean"]))
            stage["variance"].assign_add(0.1 * (variance - stage["variance"]))


def threads_of(tf, options):
    tf.config.threading.set_intra_op_parallelism_threads(options.threads)


def train(options, pids):
    """Images/s and CPU seconds for 1,000 images, as seen here."""
    # pylint: disable=import-outside-toplevel
    import tensorflow as tf
    threads_of(tf, options)
    strategy = tf.distribute.ParameterServerStrategy(resolver())
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        network = Network(tf)

    def batch(size):
        # One value an image: drawing all of them would be part of the step.
        return (tf.broadcast_to(tf.random.normal((size, 1, 1, 1)),
                                (size, 28, 28, 1)),
                tf.random.uniform((size,), maxval=CLASSES, dtype=tf.int32))

    @tf.function
    def step():
        network.step(*batch(options.batch_size))

    @tf.function
    def evaluate():
        images, _ = batch(TEST_IMAGES // options.workers)
        return network.logits(images, training=False)[0]

    begin, cpu = None, None
    for epoch in range(options.epochs):
        if epoch == 1:
            begin, cpu = time.perf_counter(), sum(map(cpu_of, pids))
        for _ in range(options.images // options.batch_size):
            coordinator.schedule(step)
        coordinator.join()
        for _ in range(options.workers):
            coordinator.schedule(evaluate)
        coordinator.join()
    trained = options.images * (options.epochs - 1)
    return (trained / (time.perf_counter() - begin),
            1000 * (sum(map(cpu_of, pids)) - cpu) / trained)


def run(options):
    """Starts the other processes, trains, and ends them."""
    addresses = [f"127.0.0.1:{port}"
                 for port in named_ports(options.workers + 2)]
    cluster = {"chief": addresses[:1], "ps": addresses[1:2],
               "worker": addresses[2:]}

    def environment(kind, index):
        return {"TF_CONFIG": json.dumps({
            "cluster": cluster, "task": {"type": kind, "index": index}}),
                "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}

    started = [subprocess.Popen(
        [sys.executable, "-B", __file__, "--serve", *sys.argv[1:]],
        env={**os.environ, **environment(kind, index)})
        for kind, index in [("ps", 0), *(
            ("worker", rank) for rank in range(options.workers))]]
    try:
        os.environ.update(environment("chief", 0))
        rate, cpu = train(options, [os.getpid(), *(one.pid for one in started)])
        print("rate", rate, cpu, flush=True)
    finally:
        for one in started:
            one.kill()
            one.wait()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--model", choices=("cnn",), default="cnn")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--images", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--serve", action="store_true",
                        help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        # pylint: disable=import-outside-toplevel
        import tensorflow as tf
        threads_of(tf, options)
        serve()
        return
    run(options)
    # Threads of the coordinator would wait for the ended processes.
    os._exit(0)


if __name__ == "__main__":
    main()
