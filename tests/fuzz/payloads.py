"""Strategies for malicious messages: wrong payloads, and bytes that were changed."""

import json
import struct
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from fedgh.core import wire
from fedgh.core.types import Payload

NAMES = st.one_of(
    st.sampled_from(
        [
            *("", ".", "..", "/", "../../etc/passwd", "C:\\nul", "~", "$HOME", "%s%n", "{0}", "\0"),
            *("__class__", "__proto__", "__metadata__", "weight", "classes", "means", "bias"),
            *("a\nb", "\x1b[2J", "\u202eabc", "n" * 5_000, "\n" * 300, "ü" * 300, "'\"\\"),
        ]
    ),
    st.text(max_size=12),
)
DTYPES = [
    *("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "U16", "U32", "U64", "BOOL"),
    *("F8_E4M3", "F8_E5M2", "F8_E8M0", "F4", "F6_E2M3", "C64", "f32", "", "object", "F32\n", 7),
]
SIZES = [
    ("F8_E8M0", 1),
    ("F8_E4M3", 1),
    ("BOOL", 1),
    ("BF16", 2),
    ("I32", 4),
    ("U64", 8),
    ("C64", 8),
]
HUGE = st.sampled_from([2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30, -(2**63)])
NUMBERS: SearchStrategy[Any] = st.one_of(
    st.integers(-2, 70),
    HUGE,
    st.sampled_from([1.5, True, None, "1", [], {}]),
)
OTHER_DTYPES = [
    *(torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8),
    *(torch.uint8, torch.bool, torch.float32, torch.complex64, torch.float8_e4m3fn),
]
SPECIAL = [
    *(float("nan"), float("inf"), float("-inf"), 3.4e38, -3.4e38, 1e30, 1e19, 1e-45, -0.0, 1e9),
    *(-1.0, 2147483647.0, -2147483648.0),
]
COUNTS = [1, 2**31 - 1]  # valid numbers of samples


def frame(header: bytes, body: bytes, length: int | None = None) -> bytes:
    """Return a safetensors message: the length of the header, the header, the tensors."""
    return struct.pack("<Q", len(header) if length is None else length) + header + body


def honest(spec: wire.Spec, seed: int, size: int = 2) -> Payload:
    """Return small random tensors that match a declaration; free dimensions have this size."""
    rng = torch.Generator().manual_seed(seed)
    payload: Payload = {}
    for name, field in spec.items():
        shape = [min(size, dim.most) if isinstance(dim, wire.Dim) else dim for dim in field.shape]
        if field.classes is not None:
            names = max(field.classes, *shape)
            values = torch.randperm(names, generator=rng)[: shape[0]].float()
        elif field.dtype.is_floating_point:
            values = torch.rand(shape, generator=rng) / 10
        else:
            values = torch.randint(1, 9, shape, generator=rng).float()
        if field.at_least is not None or field.at_most is not None:
            values = values.clamp(field.at_least, field.at_most)
        if name == "kernel":  # a symmetric matrix of norm 1
            values = (values + values.T) / (values + values.T).norm()
        payload[name] = values.to(field.dtype)
    return payload


@st.composite
def payloads(draw: DrawFn, spec: wire.Spec) -> Payload:
    """Draw a payload that matches its declaration except for up to three changes."""
    payload = honest(spec, draw(st.integers(0, 9)), draw(st.integers(0, 6)))
    for _ in range(draw(st.integers(0, 3))):
        if bool(payload) and draw(st.booleans()):
            name = draw(st.sampled_from(sorted(payload)))
            payload[name] = draw(_changed_tensor(payload[name]))
        else:
            payload = draw(_changed_names(payload))
    return payload


@st.composite
def extreme(draw: DrawFn, spec: wire.Spec) -> Payload:
    """Draw a payload as declared; each tensor repeats one extreme value, as medians then do."""
    payload = honest(spec, draw(st.integers(0, 9)), draw(st.integers(0, 6)))
    for name, field in spec.items():
        if field.classes is None:
            values = [-1.0, 0.0, 1e-45, 1.0, 300.0] if field.dtype.is_floating_point else COUNTS
            values = [0, 1] if field.dtype in (torch.bool, torch.uint8) else values
            payload[name] = torch.full_like(payload[name], draw(st.sampled_from(values)))
    return payload


@st.composite
def _changed_tensor(draw: DrawFn, tensor: torch.Tensor) -> torch.Tensor:
    """Draw the tensor with one change, mostly invalid."""
    if tensor.is_complex():  # not in any declaration, so invalid already
        return tensor
    kinds = ["value", "value", "all values", "row twice", "dtype", "shape", "scale"]
    kind = draw(st.sampled_from(kinds))
    if kind == "dtype":
        return tensor.float().to(draw(st.sampled_from(OTHER_DTYPES)))
    if kind == "shape":
        shape = draw(st.lists(st.integers(0, 5), max_size=4))
        return torch.zeros(shape, dtype=tensor.dtype)
    if not tensor.numel() or tensor.dtype in (torch.bool, torch.float8_e4m3fn):
        return tensor.clone()
    if kind == "scale":
        return (tensor.double() * draw(st.sampled_from([-1, 1e3, 1e18, 1e38]))).to(tensor.dtype)
    changed = tensor.clone()
    if kind == "row twice" and changed.ndim:
        changed[0] = changed[-1]
        return changed
    value = draw(st.sampled_from(SPECIAL) | st.integers(-3, 12))
    flat = changed.view(-1)
    indices = slice(None) if kind == "all values" else draw(st.integers(0, flat.numel() - 1))
    flat[indices] = torch.tensor(value, dtype=torch.float64).to(tensor.dtype)
    return changed


@st.composite
def _changed_names(draw: DrawFn, payload: Payload) -> Payload:
    """Draw the payload with one tensor removed, added or renamed."""
    names = sorted(payload)
    out = dict(payload)
    if bool(names) and draw(st.booleans()):
        removed = out.pop(draw(st.sampled_from(names)))
        if draw(st.booleans()):
            out[draw(NAMES)] = removed
    else:
        out[draw(NAMES)] = torch.zeros(draw(st.lists(st.integers(0, 3), max_size=3)))
    return out


@st.composite
def tampered(draw: DrawFn, message: bytes) -> bytes:
    """Draw the bytes of a message with some flipped, cut, inserted, doubled or moved."""
    data = bytearray(message)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        stop = draw(st.integers(start, min(len(data), start + 64)))
        match draw(st.sampled_from(["flip", "flip", "cut", "remove", "insert", "double", "move"])):
            case "flip" if start < len(data):
                data[start] ^= draw(st.integers(1, 255))
            case "cut":
                del data[start:]
            case "remove":
                del data[start:stop]
            case "insert":
                data[start:start] = draw(st.binary(max_size=16))
            case "double":
                data[start:start] = data[start:stop]
            case "move":
                piece = data[start:stop]
                del data[start:stop]
                index = draw(st.integers(0, len(data)))
                data[index:index] = piece
    return bytes(data)


@st.composite
def with_false_header(draw: DrawFn, message: bytes) -> bytes:
    """Draw the tensors of a message with a false header."""
    length = struct.unpack_from("<Q", message)[0]
    body = message[8 + length :]
    entries: list[tuple[str, Any]] = list(json.loads(message[8 : 8 + length]).items())
    for _ in range(draw(st.integers(0, 3))):
        index = draw(st.integers(0, len(entries)))
        match draw(st.sampled_from(["field", "field", "new", "new", "double", "name", "drop"])):
            case "field" if index < len(entries):
                entries[index] = (entries[index][0], draw(_changed_entry(entries[index][1])))
            case "double" if index < len(entries):
                entries.append(entries[index])
            case "name" if index < len(entries):
                entries[index] = (draw(NAMES), entries[index][1])
            case "drop" if index < len(entries):
                del entries[index]
            case _:
                entries.insert(index, (draw(NAMES), draw(_entries())))
    header = _json(entries)
    match draw(st.sampled_from(["as it is"] * 4 + ["length", "spaces", "deep", "latin", "body"])):
        case "length":
            return frame(header, body, draw(st.sampled_from([0, 1, 7, 2**32, 2**63, 2**64 - 1])))
        case "spaces":
            header += b" " * draw(st.integers(0, 20))
        case "deep":
            depth = draw(st.sampled_from([50, 5_000]))
            header = b'{"a":' * depth + b"1" + b"}" * depth
        case "latin":
            header = header.replace(b"F32", b"F\xff2")
        case "body":
            body += draw(st.binary(max_size=9))
    return frame(header, body)


def _json(entries: list[tuple[str, Any]]) -> bytes:
    """Return a JSON object, which may have a name twice."""
    pairs = [f"{json.dumps(name)}:{json.dumps(value)}" for name, value in entries]
    return ("{" + ",".join(pairs) + "}").encode()


@st.composite
def _changed_entry(draw: DrawFn, entry: object) -> object:
    """Draw the header entry of a tensor with one part changed."""
    if not isinstance(entry, dict):
        return draw(NUMBERS)
    part = draw(st.sampled_from(["dtype", "shape", "data_offsets", "other", "whole", "extra"]))
    match part:
        case "other":  # the same number of bytes as another type
            byte_count = _length(entry.get("data_offsets"))
            dtype, size = draw(st.sampled_from(SIZES))
            return entry | {"dtype": dtype, "shape": [byte_count // size]}
        case "dtype":
            return entry | {part: draw(st.sampled_from(DTYPES))}
        case "shape" | "data_offsets":
            numbers = list(entry.get(part, [])) or [0]
            numbers[draw(st.integers(0, len(numbers) - 1))] = draw(NUMBERS)
            return entry | {part: draw(st.sampled_from([numbers, numbers[::-1], numbers * 2]))}
        case "extra":
            return entry | {draw(NAMES): draw(NUMBERS)}
    return draw(NUMBERS)


def _length(numbers: object) -> int:
    """Return the bytes between two offsets, or 0 if they are not two integers."""
    match numbers:
        case [int(start), int(end)]:
            return end - start
    return 0


def _entries() -> SearchStrategy[dict[str, Any]]:
    """Draw the header entry of a tensor that does not exist, or of one without elements."""
    return st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(DTYPES),
            "shape": st.lists(NUMBERS, max_size=4),
            "data_offsets": st.lists(NUMBERS, min_size=2, max_size=2) | st.just([0, 0]),
        }
    ) | st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(["F32", "F8_E8M0"]),
            "shape": st.lists(HUGE, max_size=3).map(lambda sizes: [0, *sizes]),
            "data_offsets": st.just([0, 0]),
        }
    )


def messages(spec: wire.Spec) -> SearchStrategy[bytes]:
    """Draw a message of a malicious party where a payload with this declaration is expected."""
    honest_message = wire.to_bytes(honest(spec, seed=0))
    return st.one_of(
        payloads(spec).map(_encoded),
        payloads(spec).map(_encoded),
        extreme(spec).map(_encoded),
        tampered(honest_message),
        with_false_header(honest_message),
        st.binary(max_size=200),
    )


def _encoded(payload: Payload) -> bytes:
    """Return a payload as a message, even if safetensors would refuse a name."""
    try:
        return wire.to_bytes(payload)
    except Exception:
        return frame(_json([(name, {}) for name in payload]), b"")
