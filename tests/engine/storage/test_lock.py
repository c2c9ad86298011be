"""Locks of files."""

import os
import threading

from fedtailor.engine.storage.lock import ProcessLock, is_held, locked_lines


def test_a_lock_names_its_process_until_it_is_released(tmp_path):
    path = tmp_path / ".lock"
    first, second = ProcessLock(path), ProcessLock(path)
    assert not is_held(path)
    assert first.try_acquire() == 0 and is_held(path)
    assert second.try_acquire() == os.getpid()
    second.release()  # it holds nothing
    assert is_held(path)
    first.release()
    assert not is_held(path) and not path.exists()
    assert second.try_acquire() == 0
    second.release()


def test_a_file_without_a_process_is_not_held(tmp_path):
    path = tmp_path / ".lock"
    path.write_text("12")
    path.chmod(0o444)  # whoever asks need not be able to write it
    assert not is_held(path)


def test_lines_go_to_the_file_of_this_name_one_process_after_the_other(tmp_path):
    """Whoever waits while the file is renamed writes to the new one."""
    path, entered = tmp_path / "lines", threading.Event()

    def write():
        entered.set()
        with locked_lines(path) as file:
            file.write(b"second\n")

    with locked_lines(path) as file:
        file.write(b"first\n")
        thread = threading.Thread(target=write)
        thread.start()
        entered.wait()
        thread.join(0.2)
        assert thread.is_alive(), "it waits for the lock"
        path.rename(tmp_path / "older")
    thread.join()
    assert (tmp_path / "older").read_bytes() == b"first\n"
    assert path.read_bytes() == b"second\n"
    assert path.stat().st_mode & 0o777 == 0o600
