//! Metadata values: the thirteen types of GGUF, with arrays nested at will.
//!
//! Owns their representation, names and numbers; must not know keys or files.

/// The type numbers of GGUF's metadata values.
pub(crate) mod number {
    pub const U8: u32 = 0;
    pub const I8: u32 = 1;
    pub const U16: u32 = 2;
    pub const I16: u32 = 3;
    pub const U32: u32 = 4;
    pub const I32: u32 = 5;
    pub const F32: u32 = 6;
    pub const BOOL: u32 = 7;
    pub const STRING: u32 = 8;
    pub const ARRAY: u32 = 9;
    pub const U64: u32 = 10;
    pub const I64: u32 = 11;
    pub const F64: u32 = 12;
}

/// Declares [`Value`] and [`Array`] from one row per element type.
macro_rules! types {
    ($($variant:ident($rust:ty) $name:literal $number:ident;)+) => {
        /// One metadata value.
        #[derive(Clone, Debug, PartialEq)]
        #[expect(missing_docs, reason = "a variant per type, named as the type")]
        pub enum Value { $($variant($rust),)+ Array(Array) }

        /// An array of values of one type.
        #[derive(Clone, Debug, PartialEq)]
        #[expect(missing_docs, reason = "a variant per element type, named as the type")]
        pub enum Array { $($variant(Vec<$rust>),)+ Array(Vec<Array>) }

        impl Value {
            /// The type's name, such as `u32` or `array of string`.
            pub fn type_name(&self) -> String {
                match self {
                    $(Value::$variant(_) => $name.to_owned(),)+
                    Value::Array(array) => format!("array of {}", array.element_name()),
                }
            }

            pub(crate) fn type_number(&self) -> u32 {
                match self {
                    $(Value::$variant(_) => number::$number,)+
                    Value::Array(_) => number::ARRAY,
                }
            }
        }

        impl Array {
            /// How many elements there are.
            pub fn len(&self) -> usize {
                match self {
                    $(Array::$variant(items) => items.len(),)+
                    Array::Array(items) => items.len(),
                }
            }

            /// Whether there is no element.
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// The name of the elements' type.
            pub fn element_name(&self) -> &'static str {
                match self { $(Array::$variant(_) => $name,)+ Array::Array(_) => "array" }
            }

            pub(crate) fn element_number(&self) -> u32 {
                match self {
                    $(Array::$variant(_) => number::$number,)+
                    Array::Array(_) => number::ARRAY,
                }
            }
        }

        $(impl From<$rust> for Value {
            fn from(value: $rust) -> Self { Value::$variant(value) }
        }
        impl From<Vec<$rust>> for Value {
            fn from(items: Vec<$rust>) -> Self { Value::Array(Array::$variant(items)) }
        })+
    };
}

types! {
    U8(u8) "u8" U8;
    I8(i8) "i8" I8;
    U16(u16) "u16" U16;
    I16(i16) "i16" I16;
    U32(u32) "u32" U32;
    I32(i32) "i32" I32;
    F32(f32) "f32" F32;
    Bool(bool) "bool" BOOL;
    String(String) "string" STRING;
    U64(u64) "u64" U64;
    I64(i64) "i64" I64;
    F64(f64) "f64" F64;
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::String(text.to_owned())
    }
}

impl From<Array> for Value {
    fn from(array: Array) -> Self {
        Value::Array(array)
    }
}

impl Value {
    /// The value of any integer type; `None` for other types.
    pub fn integer(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(value) => value.into(),
            Value::I8(value) => value.into(),
            Value::U16(value) => value.into(),
            Value::I16(value) => value.into(),
            Value::U32(value) => value.into(),
            Value::I32(value) => value.into(),
            Value::U64(value) => value.into(),
            Value::I64(value) => value.into(),
            Value::F32(_) | Value::F64(_) | Value::Bool(_) | Value::String(_) | Value::Array(_) => {
                return None;
            }
        })
    }
}

impl Array {
    /// The elements of an array of any integer type; `None` for other types.
    pub fn integers(&self) -> Option<Box<dyn Iterator<Item = i128> + '_>> {
        fn widen<T: Copy + Into<i128>>(items: &[T]) -> Box<dyn Iterator<Item = i128> + '_> {
            Box::new(items.iter().map(|&item| item.into()))
        }
        Some(match self {
            Array::U8(items) => widen(items),
            Array::I8(items) => widen(items),
            Array::U16(items) => widen(items),
            Array::I16(items) => widen(items),
            Array::U32(items) => widen(items),
            Array::I32(items) => widen(items),
            Array::U64(items) => widen(items),
            Array::I64(items) => widen(items),
            Array::F32(_) | Array::F64(_) | Array::Bool(_) | Array::String(_) | Array::Array(_) => {
                return None;
            }
        })
    }
}
