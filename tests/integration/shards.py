"""A cohort whose model several server processes share."""

from processes import BIN, Cohort, kill


EPOCHS = 3


class Shards(Cohort):
    """Shard 0 is the server of the cohort; the others have its machine too."""

    def __init__(self, shards, *server_flags, workers=2):
        super().__init__(workers=workers, server_flags=[
            f"--epochs={EPOCHS}", "--checkpoint_every=4", "--partition_kib=1",
            *server_flags], keeps=True)
        self.local = "tcp"
        self.data_shards = {}
        self.data_addresses = {}
        for shard in range(1, shards):
            self.start_data_shard(shard)
        if shards > 1:
            self.server_flags.append("--shard_addresses=" + ",".join(
                self.data_addresses[shard] for shard in range(1, shards)))

    def data_shard_flags(self, _shard):
        """Further flags of that data shard."""
        return []

    def start_data_shard(self, shard):
        """On its previous address if it had one."""
        file = self.dir / f"address{shard}"
        file.unlink(missing_ok=True)
        listen = self.data_addresses.get(shard, "127.0.0.1:0")
        self.data_shards[shard] = self.start_process(f"shard{shard}", [
            BIN / "cohort-server", "--data_shard", f"--listen={listen}",
            f"--address_file={file}", *self.data_shard_flags(shard)])
        self.until(lambda: file.exists() and file.read_text().strip(),
                   f"shard {shard} to listen")
        self.data_addresses[shard] = file.read_text().strip()

    def kill_and_restart(self, shard):
        if shard == 0:
            self.resume_server()
        else:
            kill(self.data_shards[shard])
            self.start_data_shard(shard)

    def complete(self, code=0):
        digest = super().complete(code)
        for shard, process in self.data_shards.items():
            if process.wait(60) != 0:
                raise AssertionError(self.log(f"shard{shard}"))
        return digest
