"""Generate the Python code of proto/, beside the .proto files; ``--check`` only says whether it is fresh.

The protos lie where their Python import path is (``rondel/v1``), so what protoc writes imports
``rondel.v1.x_pb2`` and needs no repair afterwards.
"""

import argparse
import sys
import tempfile
from importlib import resources
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
GENERATED = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py", "*_pb2_grpc.pyi")


def generate(into: Path) -> None:
    """Run protoc over every proto of ours. Files without a service leave no _pb2_grpc.py behind."""
    sources = sorted(PROTO.glob("rondel/**/*.proto"))
    if not sources:
        raise SystemExit(f"no .proto file under {PROTO}")
    well_known = resources.files("grpc_tools") / "_proto"
    # protoc types the messages but not the gRPC half; mypy-protobuf's plugin does.
    plugin = Path(sys.executable).with_name("protoc-gen-mypy_grpc")
    arguments = ["protoc", f"-I{PROTO}", f"-I{well_known}", f"--plugin=protoc-gen-mypy_grpc={plugin}"]
    arguments += [f"--{kind}_out={into}" for kind in ("python", "pyi", "grpc_python")]
    arguments += [f"--mypy_grpc_out=quiet:{into}"]
    if protoc.main(arguments + [str(path) for path in sources]) != 0:
        raise SystemExit("protoc failed")
    for path in sources:
        if not any(line.startswith("service ") for line in path.read_text().splitlines()):
            for suffix in (".py", ".pyi"):
                (into / path.relative_to(PROTO)).with_name(f"{path.stem}_pb2_grpc{suffix}").unlink(
                    missing_ok=True
                )


def stale(fresh: Path) -> list[str]:
    """What differs between the files in the tree and those generated into ``fresh``."""
    problems = []
    expected = {path.relative_to(fresh) for pattern in GENERATED for path in fresh.rglob(pattern)}
    present = {path.relative_to(PROTO) for pattern in GENERATED for path in PROTO.rglob(pattern)}
    for path in sorted(expected | present):
        if path not in present:
            problems.append(f"missing: proto/{path}")
        elif path not in expected:
            problems.append(f"no longer generated: proto/{path}")
        elif (PROTO / path).read_bytes() != (fresh / path).read_bytes():
            problems.append(f"differs: proto/{path}")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if anything is stale")
    if not parser.parse_args().check:
        generate(PROTO)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        problems = stale(Path(folder))
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        print("generated code is stale: run `make protos`", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
