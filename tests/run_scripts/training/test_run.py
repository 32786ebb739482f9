import torch.distributed as dist

from tokenmixers.run_scripts.training import run as training_run


def test_leaving_the_processes_does_not_free_their_group(monkeypatch):
    """Freeing it may wait for ever, see `leave_processes`."""
    kept: list = []
    monkeypatch.setattr(training_run, "_KEPT_PROCESS_GROUPS", kept)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    group = dist.group.WORLD
    training_run.leave_processes()
    assert not dist.is_initialized()
    assert kept == [group]
    training_run.leave_processes()  # as in a single process
    assert kept == [group]
