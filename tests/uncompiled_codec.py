"""Decodes damaged messages with the kernels uncompiled (NUMBA_DISABLE_JIT=1), where an index out of bounds raises."""

import random
import sys
import warnings
from typing import Any

import numba
import numpy as np
from corpus.hostile_messages import HOSTILE, SCHEMAS
from strategies import BPM, EVERY_TYPE, encoded, raw_batch

from schemas.codec import Codec, UnknownSchemaIdError
from schemas.stream import Stream

CASES = 400


class Checked(np.ndarray):  # type: ignore[type-arg]
    """Refuses the negative indexes that NumPy would count from the end."""

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, slice) and not 0 <= index < len(self):
            raise IndexError(f"index {index} of {len(self)} bytes")
        return super().__getitem__(index)


def sample(rng: random.Random) -> list[tuple[Stream, list[dict[str, Any]], bytes]]:
    def reading(**more: Any) -> dict[str, Any]:
        return {"instrument_id": rng.choice(["bpm1", "bpm2", "ä"]), "status": rng.choice([0, 300]), **more}

    buttons = {name: rng.choice([None, 1.5]) for name in ("top_in", "bot_in", "bot_out", "top_out")}
    head = {"source": "crate1", "run": rng.getrandbits(40), "time": rng.getrandbits(50)}
    bpm = {**head, "trigger_id": 5, "readings": [reading(**buttons) for _ in range(rng.randrange(4))]}
    nested = {
        "extra": [{"a": [1, 2], "b": None}, {"c": "text"}],
        "link": {"weight": 1, "next": {"weight": 2, "next": None}},
        "colour": "RED",
        "digest": b"abc",
    }
    every = {"instrument": "i", "flag": True, "small": 1, "large": None, "single": 1.0, "double": 2.0, "seen": 5}
    mixed = {**head, "trigger": 1, "energy": 1.0, "shots": 2, "lit": True, "readings": [{**every, "status": 1}] * 2}
    return [
        (BPM, [BPM.avro], encoded(BPM.avro, bpm)),
        (BPM, SCHEMAS, encoded(SCHEMAS[1], {**bpm, **nested}, 2)),
        (EVERY_TYPE, [EVERY_TYPE.avro], encoded(EVERY_TYPE.avro, mixed)),
    ]


def codec_of(stream: Stream, schemas: list[dict[str, Any]]) -> Codec:
    def schema(schema_id: int) -> dict[str, Any]:
        if not 1 <= schema_id <= len(schemas):
            raise UnknownSchemaIdError(schema_id)
        return schemas[schema_id - 1]

    return Codec(stream, schema)


def main() -> None:
    assert numba.config.DISABLE_JIT
    warnings.simplefilter("ignore", RuntimeWarning)  # hashes overflow on purpose
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 20260101
    rng = random.Random(seed)
    letters = 0
    for case in range(CASES):
        for stream, schemas, good in sample(rng):
            bad = bytearray(good)
            for _ in range(rng.randrange(1, 5)):
                bad[rng.randrange(5, len(bad))] = rng.choice([rng.randrange(256), 0, 1, 127, 128, 255])
            if rng.random() < 0.3:
                bad = bad[: rng.randrange(len(bad))]
            for first in ([], [good]):  # alone, and behind a good one
                batch = raw_batch([*first, bytes(bad)])
                batch = batch._replace(data=batch.data.view(Checked))
                try:
                    letters += len(codec_of(stream, schemas).decode(batch).letters)
                except Exception:
                    sys.stderr.write(f"seed {seed}, case {case}: {bytes(bad).hex()}\n")
                    raise
    for _, payload, _ in HOSTILE:
        batch = raw_batch([payload])
        letters += len(codec_of(BPM, SCHEMAS).decode(batch._replace(data=batch.data.view(Checked))).letters)
    sys.stdout.write(f"{letters} letters\n")


main()
