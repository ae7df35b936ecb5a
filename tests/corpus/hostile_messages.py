"""Messages that nobody should send, each with the reason it is refused for. A bug found becomes a line here.

The bytes are those of a record of stream bpm, written out so that every one of them can be seen.
"""

from typing import Any

FLOATS = [{"name": name, "type": ["null", "float"]} for name in ("top_in", "bot_in", "bot_out", "top_out")]
READINGS = {
    "type": "array",
    "items": {
        "type": "record",
        "name": "BpmReading",
        "fields": [{"name": "instrument_id", "type": "string"}, {"name": "status", "type": "int"}, *FLOATS],
    },
}
HEAD = [
    {"name": "source", "type": "string"},
    {"name": "run", "type": "long"},
    {"name": "trigger_id", "type": "long"},
    {"name": "time", "type": {"type": "long", "logicalType": "timestamp-micros"}},
]
TAIL = {"name": "readings", "type": READINGS}
LINK = {
    "type": "record",
    "name": "Link",
    "fields": [{"name": "weight", "type": "long"}, {"name": "next", "type": ["null", "Link"]}],
}
SCHEMAS: list[dict[str, Any]] = [  # ids 1, 2, …
    {"type": "record", "name": "BpmTrigger", "fields": [*HEAD, TAIL]},
    {  # 2: much that the stream does not know
        "type": "record",
        "name": "BpmTrigger",
        "fields": [
            {
                "name": "extra",
                "type": {
                    "type": "array",
                    "items": {"type": "map", "values": ["null", "string", {"type": "array", "items": "long"}]},
                },
            },
            {"name": "link", "type": LINK},
            {"name": "colour", "type": {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}},
            {"name": "digest", "type": {"type": "fixed", "name": "Digest", "size": 3}},
            *HEAD,
            TAIL,
        ],
    },
    {"type": "record", "name": "BpmTrigger", "fields": [*HEAD[1:], TAIL]},  # 3: without a source
    {"type": "record", "name": "BpmTrigger", "fields": [{"name": "flag", "type": "boolean"}, *HEAD, TAIL]},  # 4
    {  # 5: a run that may be null, and numbers where texts belong are refused for each record
        "type": "record",
        "name": "BpmTrigger",
        "fields": [{"name": "run", "type": ["null", "long"]}, HEAD[0], *HEAD[2:], TAIL],
    },
    {
        "type": "record",
        "name": "BpmTrigger",
        "fields": [{"name": "z", "type": {"type": "array", "items": "null"}}, *HEAD, TAIL],
    },  # 6
    {"type": "record", "name": "Loop", "fields": [{"name": "again", "type": "Loop"}, *HEAD, TAIL]},  # 7: has no end
    {"type": "string"},  # 8: no record at all
    {
        "type": "record",
        "name": "BpmTrigger",
        "fields": [*HEAD[:3], {"name": "time", "type": {"type": "long", "logicalType": "timestamp-millis"}}, TAIL],
    },  # 9
    {"type": "record", "name": "Broken", "fields": [{"name": "x", "type": "no such type"}]},  # 10
]

ID = b"\x00\x00\x00\x00"  # the frame, but for the last byte of the schema id
START = b"\x0ccrate1\x02\x04\x06"  # source, run 1, trigger 2, time 3
READING = b"\x08bpm1\x00\x02\x00\x00\x80\x3f\x00\x02\x00\x00\x00\x3f\x02\x00\x00\x00\x40"
ONE = b"\x02"  # a block of one reading
LEAST = b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"  # -2**63
MOST = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"  # 2**63 - 1
GOOD = ID + b"\x01" + START + ONE + READING + b"\x00"
NOTHING = b"\x00\x02\x00\x00abc"  # of schema 2: no extra, a link of weight 1, RED, abc

HOSTILE: list[tuple[str, bytes | None, str]] = [
    ("a tombstone", None, "null"),
    ("nothing", b"", "empty"),
    ("one byte of a frame", b"\x00", "not-framed"),
    ("four bytes of a frame", ID, "not-framed"),
    ("JSON", b'{"source": "crate1", "run": 1}', "not-framed"),
    ("Avro without a frame", START + ONE + READING + b"\x00", "not-framed"),
    ("an Avro container file", b"Obj\x01\x04\x14avro.codec", "not-framed"),
    ("a magic byte of another format", b"\x01" + GOOD[1:], "not-framed"),
    ("an id nobody registered", ID + b"\x63" + GOOD[5:], "unknown-schema"),
    ("the largest id", b"\x00\xff\xff\xff\xff" + GOOD[5:], "unknown-schema"),
    ("a schema without the source", ID + b"\x03" + START[7:] + b"\x00", "incompatible"),
    ("a schema that is a string", ID + b"\x08" + b"\x06abc", "incompatible"),
    ("a schema that is not Avro", ID + b"\x0a" + GOOD[5:], "incompatible"),
    ("a frame and no record", ID + b"\x01", "truncated"),
    ("cut in a text", GOOD[:9], "bad-length"),
    ("cut in a float", GOOD[:-3], "truncated"),
    ("cut before the end of the array", GOOD[:-1], "truncated"),
    ("cut in a number", ID + b"\x01" + START[:-1] + b"\x86", "truncated"),
    ("a byte too many", GOOD + b"\x00", "trailing"),
    ("two records in one payload", GOOD + GOOD[5:], "trailing"),
    ("a text of negative length", ID + b"\x01" + b"\x01" + GOOD[6:], "bad-length"),
    ("a text of the least length", ID + b"\x01" + LEAST + GOOD[6:], "bad-length"),
    ("a text of the most length", ID + b"\x01" + MOST + GOOD[6:], "bad-length"),
    ("a text one byte longer than the payload", ID + b"\x01\x08abc", "bad-length"),
    ("a text that is not UTF-8", GOOD.replace(b"bpm1", b"bp\xff1"), "bad-text"),
    ("a surrogate as UTF-8", GOOD.replace(b"bpm1", b"b\xed\xa0\x80"), "bad-text"),
    ("an overlong slash", GOOD.replace(b"bpm1", b"bp\xc0\xaf"), "bad-text"),
    ("an overlong three-byte form", GOOD.replace(b"bpm1", b"b\xe0\x80\xaf"), "bad-text"),
    ("a code point beyond Unicode", GOOD.replace(b"bpm1", b"\xf4\x90\x80\x80"), "bad-text"),
    ("half a code point", GOOD.replace(b"bpm1", b"bpm\xc3"), "bad-text"),
    ("NUL, which PostgreSQL's text cannot hold", GOOD.replace(b"bpm1", b"bp\x001"), "bad-text"),
    ("a source that is not UTF-8", GOOD.replace(b"crate1", b"crat\xe91"), "bad-text"),
    ("a name of 256 bytes", GOOD.replace(b"\x08bpm1", b"\x80\x04" + b"x" * 256), "bad-text"),
    ("a number of eleven bytes", ID + b"\x01" + START[:7] + b"\x80" * 10 + b"\x00" + START[8:] + b"\x00", "bad-number"),
    ("a number of 65 bits", ID + b"\x01" + START[:7] + b"\xff" * 9 + b"\x02" + START[8:] + b"\x00", "bad-number"),
    ("a status of 33 bits", GOOD.replace(b"bpm1\x00", b"bpm1\x80\x80\x80\x80\x10"), "bad-number"),
    ("milliseconds that overflow microseconds", ID + b"\x09" + START[:9] + MOST + b"\x00", "bad-number"),
    ("a branch that does not exist", GOOD.replace(b"\x02\x00\x00\x80\x3f", b"\x04\x00\x00\x80\x3f"), "bad-choice"),
    ("a negative branch", GOOD.replace(b"\x02\x00\x00\x80\x3f", b"\x01\x00\x00\x80\x3f"), "bad-choice"),
    ("a branch of the most", ID + b"\x02" + b"\x02\x02\x02k" + MOST + b"\x00\x00" + NOTHING[1:], "bad-choice"),
    ("a symbol that does not exist", ID + b"\x02" + b"\x00\x02\x00\x04abc" + START + b"\x00", "bad-choice"),
    ("an array of 2**62 readings", ID + b"\x01" + START + b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f", "bad-count"),
    ("an array of 2**63 - 1 readings", ID + b"\x01" + START + MOST + READING + b"\x00", "bad-count"),
    ("an array of -2**63 readings", ID + b"\x01" + START + LEAST + b"\x00" + READING + b"\x00", "bad-count"),
    ("a thousand readings in thirty bytes", ID + b"\x01" + START + b"\xd0\x0f" + READING + b"\x00", "bad-count"),
    ("a billion items of no bytes", ID + b"\x06" + b"\x80\xa8\xd6\xb9\x07\x00" + START + b"\x00", "bad-count"),
    ("blocks upon blocks of no bytes", ID + b"\x06" + b"\x0e" * 40 + b"\x00" + START + b"\x00", "bad-count"),
    ("a skipped array of the most items", ID + b"\x02" + MOST + NOTHING[1:] + START + b"\x00", "bad-count"),
    ("a skipped block beyond the end", ID + b"\x02" + b"\x01" + MOST + NOTHING + START + b"\x00", "bad-length"),
    ("a skipped block of negative bytes", ID + b"\x02" + b"\x01\x01" + NOTHING + START + b"\x00", "bad-length"),
    ("a block of readings beyond the end", ID + b"\x01" + START + b"\x01\x7e" + READING + b"\x00", "bad-length"),
    ("a block of readings of negative bytes", ID + b"\x01" + START + b"\x01\x01" + READING + b"\x00", "bad-length"),
    ("a block of readings that ends early", ID + b"\x01" + START + b"\x01\x28" + READING + b"\x00", "bad-length"),
    ("cut in a skipped fixed", ID + b"\x02" + NOTHING[:-1], "truncated"),
    ("a skipped boolean of 2", ID + b"\x04" + b"\x02" + START + b"\x00", "bad-boolean"),
    ("a run that is null", ID + b"\x05" + b"\x00" + START[:7] + START[8:] + b"\x00", "no-value"),
    (
        "a chain of a hundred links",
        ID + b"\x02" + b"\x00" + b"\x02\x02" * 100 + b"\x02\x00\x00abc" + START + b"\x00",
        "nested",
    ),
    ("a record that contains itself", ID + b"\x07" + START + b"\x00", "nested"),
]
