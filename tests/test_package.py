"""The package as installed: its version, its marker for type checkers, and what importing it costs."""

import subprocess
import sys
from importlib import metadata, resources

import rondel


def _python(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _run(code: str) -> str:
    return _python("-c", code)


def test_version_is_the_one_of_the_metadata() -> None:
    assert rondel.__version__ == metadata.version("rondel")


def test_type_checkers_may_read_the_package() -> None:
    assert resources.files("rondel").joinpath("py.typed").is_file()


def test_importing_rondel_brings_in_neither_grpc_nor_numpy() -> None:
    loaded = _run(
        "import rondel, sys; print(sorted({'grpc', 'numpy', 'asyncio', 'tokenizers'} & set(sys.modules)))"
    )
    assert loaded == "[]"


def test_the_decoder_works_without_grpc() -> None:
    loaded = _run(
        "import rondel, sys; rondel.Arena; rondel.DecoderSession; rondel.StreamSpec;"
        "print(sorted({'grpc', 'google.protobuf', 'asyncio'} & set(sys.modules)))"
    )
    assert loaded == "[]"


def test_a_name_is_looked_up_once() -> None:
    assert _run("import rondel; rondel.StreamSpec; print('StreamSpec' in vars(rondel))") == "True"


def test_the_command_and_the_module_are_the_same_program() -> None:
    (entry,) = metadata.entry_points(group="console_scripts", name="rondel")
    assert entry.value == "rondel.client.cli.main:main"
    assert rondel.__version__ in _python("-m", "rondel.client.cli", "--version")
