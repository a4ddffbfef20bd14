//! Formats that the kernel of chains is compiled for together.
//!
//! Must not know which links there are.

use std::fmt::{self, Display, Formatter, Write};

use fornax_gguf::DType;

use crate::ways::ways;

/// Some formats of those that chains multiply.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Formats(u16);

impl Formats {
    /// The formats of those given that chains multiply.
    pub fn of(formats: impl IntoIterator<Item = DType>) -> Self {
        let place = |format| known().position(|known| known == format);
        let places = formats.into_iter().filter_map(place);
        Self(places.fold(0, |set, place| set | 1 << place))
    }

    fn list(self) -> impl Iterator<Item = DType> {
        let in_set = move |(place, _): &(usize, DType)| self.0 >> place & 1 == 1;
        known().enumerate().filter(in_set).map(|(_, format)| format)
    }

    /// A kernel's text once for each format, in a namespace named after its number, and a list of these.
    pub fn in_namespaces(self, text: &str) -> String {
        let (mut all, mut each) = (String::new(), String::from("#define EACH_FORMAT(DO)"));
        let numbers = self.list().map(DType::ggml_number);
        for number in numbers {
            let written = write!(
                all,
                "#define FORMAT {number}\nnamespace of_{number} {{\n{text}\n}}\n#undef FORMAT\n"
            )
            .and_then(|()| write!(each, " DO({number})"));
            written.expect("invariant: a string grows");
        }
        all + &each + "\n"
    }
}

/// Those that a set may have, by their places in it.
fn known() -> impl Iterator<Item = DType> {
    let formats = DType::all().iter().copied();
    formats.filter(|format| ways(*format).chains)
}

impl Display for Formats {
    fn fmt(&self, to: &mut Formatter<'_>) -> fmt::Result {
        for (index, format) in self.list().enumerate() {
            let between = if index > 0 { "+" } else { "" };
            write!(to, "{between}{format}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_what_it_was_given_once_and_in_one_order() {
        let given = [DType::Q6_K, DType::Q4_K, DType::Q2_K, DType::Q6_K];
        let set = Formats::of(given);
        assert_eq!(set.to_string(), "Q4_K+Q6_K");
        assert_eq!(set, Formats::of([DType::Q4_K, DType::Q6_K]));
        assert_eq!(
            set.in_namespaces("int x = FORMAT;"),
            "#define FORMAT 12\nnamespace of_12 {\nint x = FORMAT;\n}\n#undef FORMAT\n\
             #define FORMAT 14\nnamespace of_14 {\nint x = FORMAT;\n}\n#undef FORMAT\n\
             #define EACH_FORMAT(DO) DO(12) DO(14)\n"
        );
        assert!(known().count() <= u16::BITS as usize);
    }
}
