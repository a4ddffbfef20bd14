//! The metadata section of a file: keys and values of all types, with arrays nested at will.
//!
//! Owns their layout; must not know what a key means.

use crate::{
    Error, Metadata, Value,
    cursor::Cursor,
    error::Quoted,
    value::{Array, number},
};

/// The longest key that the format allows, in bytes.
pub(crate) const MAX_KEY_BYTES: usize = 65535;
/// How deep arrays may nest. The format sets no limit; files use none, and the reader recurses.
const MAX_ARRAY_DEPTH: usize = 8;

/// Reads `count` pairs.
pub(crate) fn read(cursor: &mut Cursor<'_>, count: usize) -> Result<Metadata, Error> {
    let mut metadata = Metadata::new(cursor.file());
    for index in 0..count {
        cursor.about(format!("metadata pair {index}"));
        let start = cursor.position();
        let key = cursor.string("the key")?;
        cursor.about(format!("metadata key {}", Quoted(key)));
        if key.is_empty() || key.len() > MAX_KEY_BYTES {
            return Err(cursor.fault(
                start,
                format!("a key has 1 to {MAX_KEY_BYTES} bytes, not {}", key.len()),
            ));
        }
        let kind = cursor.u32("the value's type")?;
        let value = value(cursor, kind)?;
        // It is kept once with its value, and once to be found.
        cursor.keep(1, 2 * size_of::<(String, Value)>() + key.len())?;
        if !metadata.insert(key, value) {
            return Err(cursor.fault(start, "the key is there twice"));
        }
    }
    Ok(metadata)
}

fn value(cursor: &mut Cursor<'_>, kind: u32) -> Result<Value, Error> {
    const WHAT: &str = "the value";
    Ok(match kind {
        number::U8 => Value::U8(u8::from_le_bytes(cursor.array(WHAT)?)),
        number::I8 => Value::I8(i8::from_le_bytes(cursor.array(WHAT)?)),
        number::U16 => Value::U16(u16::from_le_bytes(cursor.array(WHAT)?)),
        number::I16 => Value::I16(i16::from_le_bytes(cursor.array(WHAT)?)),
        number::U32 => Value::U32(u32::from_le_bytes(cursor.array(WHAT)?)),
        number::I32 => Value::I32(i32::from_le_bytes(cursor.array(WHAT)?)),
        number::F32 => Value::F32(f32::from_le_bytes(cursor.array(WHAT)?)),
        number::U64 => Value::U64(u64::from_le_bytes(cursor.array(WHAT)?)),
        number::I64 => Value::I64(i64::from_le_bytes(cursor.array(WHAT)?)),
        number::F64 => Value::F64(f64::from_le_bytes(cursor.array(WHAT)?)),
        number::BOOL => Value::Bool(boolean(cursor)?),
        number::STRING => Value::String(cursor.string(WHAT)?.to_owned()),
        number::ARRAY => Value::Array(array(cursor, 1)?),
        other => return Err(unknown_kind(cursor, other)),
    })
}

fn array(cursor: &mut Cursor<'_>, depth: usize) -> Result<Array, Error> {
    if depth > MAX_ARRAY_DEPTH {
        return Err(cursor.fault(
            cursor.position(),
            format!("arrays nest deeper than {MAX_ARRAY_DEPTH}"),
        ));
    }
    Ok(match cursor.u32("the array's element type")? {
        number::U8 => Array::U8(numbers(cursor, u8::from_le_bytes)?),
        number::I8 => Array::I8(numbers(cursor, i8::from_le_bytes)?),
        number::U16 => Array::U16(numbers(cursor, u16::from_le_bytes)?),
        number::I16 => Array::I16(numbers(cursor, i16::from_le_bytes)?),
        number::U32 => Array::U32(numbers(cursor, u32::from_le_bytes)?),
        number::I32 => Array::I32(numbers(cursor, i32::from_le_bytes)?),
        number::F32 => Array::F32(numbers(cursor, f32::from_le_bytes)?),
        number::U64 => Array::U64(numbers(cursor, u64::from_le_bytes)?),
        number::I64 => Array::I64(numbers(cursor, i64::from_le_bytes)?),
        number::F64 => Array::F64(numbers(cursor, f64::from_le_bytes)?),
        number::BOOL => Array::Bool(elements(cursor, 1, boolean)?),
        number::STRING => Array::String(elements(cursor, 8, |cursor| {
            Ok(cursor.string("an element")?.to_owned())
        })?),
        number::ARRAY => Array::Array(elements(cursor, 4 + 8, |cursor| array(cursor, depth + 1))?),
        other => return Err(unknown_kind(cursor, other)),
    })
}

/// The elements of an array of numbers of `N` bytes.
fn numbers<T, const N: usize>(
    cursor: &mut Cursor<'_>,
    read: fn([u8; N]) -> T,
) -> Result<Vec<T>, Error> {
    let count = cursor.count("the array's length", N)?;
    cursor.keep(count, N)?;
    let bytes = cursor.take(count * N, "the array")?;
    let (items, _) = bytes.as_chunks::<N>();
    Ok(items.iter().map(|&item| read(item)).collect())
}

/// The elements of an array of things that take at least `smallest` bytes each.
fn elements<'a, T>(
    cursor: &mut Cursor<'a>,
    smallest: usize,
    mut read: impl FnMut(&mut Cursor<'a>) -> Result<T, Error>,
) -> Result<Vec<T>, Error> {
    let count = cursor.count("the array's length", smallest)?;
    cursor.keep(count, size_of::<T>())?;
    let mut items = Vec::with_capacity(count);
    for _ in 0..count {
        items.push(read(cursor)?);
    }
    Ok(items)
}

fn boolean(cursor: &mut Cursor<'_>) -> Result<bool, Error> {
    let offset = cursor.position();
    match cursor.array::<1>("the bool")? {
        [0] => Ok(false),
        [1] => Ok(true),
        [other] => Err(cursor.fault(offset, format!("a bool is 0 or 1, not {other}"))),
    }
}

/// The error for a value type that was just read and has no meaning.
fn unknown_kind(cursor: &Cursor<'_>, kind: u32) -> Error {
    cursor.fault(
        cursor.position() - 4,
        format!("there is no metadata type {kind}"),
    )
}
