"""What Kafka's own serializers made of values, recorded from its client library 4.3.1 by `tests/java/Serialize.java`."""

from typing import Final

SERIALIZED: Final = (
    ("boolean", "true", "01"),
    ("boolean", "false", "00"),
    ("short", "0", "0000"),
    ("short", "-1", "ffff"),
    ("short", "32767", "7fff"),
    ("short", "-32768", "8000"),
    ("int", "0", "00000000"),
    ("int", "-1", "ffffffff"),
    ("int", "2147483647", "7fffffff"),
    ("int", "-2147483648", "80000000"),
    ("int", "305419896", "12345678"),
    ("long", "0", "0000000000000000"),
    ("long", "-2", "fffffffffffffffe"),
    ("long", "9223372036854775807", "7fffffffffffffff"),
    ("long", "-9223372036854775808", "8000000000000000"),
    ("float", "0.0", "00000000"),
    ("float", "-0.0", "80000000"),
    ("float", "1.5", "3fc00000"),
    ("float", "0.1", "3dcccccd"),
    ("float", "3.4028235E38", "7f7fffff"),
    ("float", "1.4E-45", "00000001"),
    ("float", "Infinity", "7f800000"),
    ("float", "NaN", "7fc00000"),
    ("double", "0.1", "3fb999999999999a"),
    ("double", "-1.0E300", "fe37e43c8800759c"),
    ("double", "4.9E-324", "0000000000000001"),
    ("double", "-Infinity", "fff0000000000000"),
    ("double", "NaN", "7ff8000000000000"),
    (
        "uuid",
        "123e4567-e89b-12d3-a456-426614174000",
        "31323365343536372d653839622d313264332d613435362d343236363134313734303030",
    ),
    (
        "uuid",
        "FFFFFFFF-0000-4000-8000-00000000000A",
        "66666666666666662d303030302d343030302d383030302d303030303030303030303061",
    ),
    ("string", "", ""),
    ("string", "café € 😀", "636166c3a920e282ac20f09f9880"),
)
"""Kind, the value as Java reads it, the bytes as hex digits."""
